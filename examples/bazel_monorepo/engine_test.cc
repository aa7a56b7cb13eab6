// Two engines of this program on the simulated fabric, as a test of a protocol of one's own would have them.
// Linked dynamically, as cc_test does by default: each library of jax_fabric is a shared object
// here, which shows symbols that none of them defines.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/engine/domains/simulated/simulated_domain.h"
#include "csrc/engine/domains/simulated/simulated_network.h"
#include "csrc/engine/transfer_engine.h"

namespace {

using jax_fabric::Access;
using jax_fabric::Deadline;
using jax_fabric::DomainGroup;
using jax_fabric::MemoryKind;

// No threads: whoever waits steps both engines.
class TwoEngines : public ::testing::Test {
 protected:
  TwoEngines() : a_(Make("a")), b_(Make("b")) {}
  ~TwoEngines() override {
    for (auto& engine : engines_) EXPECT_TRUE(engine->Close(In(1000)).has_value());
  }

  DomainGroup* Make(const std::string& name) {
    jax_fabric::EngineOptions options;
    options.threads = false;
    options.pump = [this] { Step(); };
    engines_.push_back(jax_fabric::TransferEngine::Create(options).value());
    jax_fabric::GroupOptions group;
    group.name = name;
    group.domains.push_back(std::make_unique<jax_fabric::simulated::SimulatedDomain>(
        network_, jax_fabric::simulated::SimulatedDomainOptions{}));
    return engines_.back()->AddGroup(std::move(group)).value();
  }

  void Step() {
    for (auto& engine : engines_) engine->Step();
  }

  static Deadline In(int64_t milliseconds) {
    return Deadline::After(jax_fabric::SteadyClock::Get(), milliseconds * 1000);
  }

  jax_fabric::simulated::SimulatedNetwork network_{1, jax_fabric::SteadyClock::Get()};
  std::vector<std::unique_ptr<jax_fabric::TransferEngine>> engines_;
  DomainGroup* a_;
  DomainGroup* b_;
};

TEST_F(TwoEngines, AWriteArrivesBeforeItsImmediate) {
  const auto to_b = a_->AddPeer(b_->Address()).value();
  const auto to_a = b_->AddPeer(a_->Address()).value();
  ASSERT_TRUE(a_->WaitPeers({&to_b, 1}, In(5000)).has_value());
  ASSERT_TRUE(b_->WaitPeers({&to_a, 1}, In(5000)).has_value());

  std::vector<std::byte> source(4096, std::byte{7}), target(8192);
  const auto from = a_->RegisterMemory(source.data(), source.size(), MemoryKind::kHost, Access::kLocalOnly).value();
  const auto to = b_->RegisterMemory(target.data(), target.size(), MemoryKind::kHost, Access::kRemoteWrite).value();
  const auto remote = DomainGroup::ParseDescriptor(b_->Describe(to).value()).value();
  const uint32_t immediate = b_->AllocateImmediates(1).value();

  bool arrived = false;
  const jax_fabric::WorkerCallback on_arrival{[](void* arrived, const jax_fabric::Error* error) {
                                                ASSERT_EQ(error, nullptr) << error->message;
                                                *static_cast<bool*>(arrived) = true;
                                              },
                                              &arrived};
  ASSERT_TRUE(b_->ExpectImmediate(immediate, 1, In(5000), on_arrival).has_value());

  const auto transfer = a_->Write({.peer = to_b,
                                   .source = from,
                                   .target = &remote,
                                   .target_offset = 1000,
                                   .length = source.size(),
                                   .immediate = immediate},
                                  {.deadline = In(5000)});
  ASSERT_TRUE(transfer.has_value()) << transfer.error().message;
  for (const Deadline deadline = In(5000); !arrived && !deadline.Passed(jax_fabric::SteadyClock::Get());) Step();
  ASSERT_TRUE(arrived);
  EXPECT_TRUE(std::equal(source.begin(), source.end(), target.begin() + 1000));
  EXPECT_EQ(std::count(target.begin(), target.end(), std::byte{7}), 4096);  // and nothing else
  EXPECT_TRUE(transfer->Wait(In(5000)).has_value());
}

}  // namespace
