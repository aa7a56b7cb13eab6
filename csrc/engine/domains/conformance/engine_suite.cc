#include "csrc/engine/domains/conformance/engine_suite.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ostream>
#include <thread>

#include "csrc/engine/domains/conformance/small_regions_domain.h"

namespace jax_fabric::conformance {
namespace {

constexpr int64_t kPatienceMs = 60'000;

uint64_t PatternWord(uint64_t seed, uint64_t word) {
  uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ull + word;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  return x ^ (x >> 31);
}

}  // namespace

std::string EngineCaseName(const testing::TestParamInfo<EngineCase>& info) {
  std::string name =
      info.param.fabric + std::to_string(info.param.nics) + "Nics" + (info.param.threads ? "Threads" : "Stepped");
  std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return name;
}

void PrintTo(const EngineCase& value, std::ostream* out) {
  *out << value.fabric << " " << value.nics << " NICs " << (value.threads ? "threads" : "stepped");
}

WorkerCallback EngineOutcome::callback() {
  return {[](void* context, const Error* error) {
            auto* self = static_cast<EngineOutcome*>(context);
            if (error != nullptr) self->error = *error;
            self->calls.fetch_add(1, std::memory_order_release);
          },
          this};
}

void EngineConformance::TearDown() {
  for (Node& node : nodes_) {
    if (!node.engine) continue;
    EXPECT_TRUE(node.engine->Close(In(10'000)).has_value());
  }
  nodes_.clear();
}

Deadline EngineConformance::In(int64_t milliseconds) const {
  return Deadline::After(fabric_->clock(), milliseconds * 1000);
}

void EngineConformance::MakeNodes(size_t count, uint64_t max_region_bytes) {
  fabric_ = MakeConformanceFabric(GetParam().fabric);
  ASSERT_TRUE(fabric_);
  for (size_t i = 0; i < count; ++i) {
    Node node;
    EngineOptions options;
    options.threads = GetParam().threads;
    options.key = ConformanceKey();
    options.clock = &fabric_->clock();
    options.idle = {.mode = IdleMode::kAdaptive, .spin_us = 5, .yield_us = 50};  // more threads than cores
    if (!options.threads) options.pump = [this] { Step(); };
    node.engine = TransferEngine::Create(options).value();
    GroupOptions group;
    group.name = "node" + std::to_string(i);
    for (int nic = 0; nic < GetParam().nics; ++nic) {
      auto domain = fabric_->CreateDomain({});
      ASSERT_TRUE(domain.has_value()) << domain.error().message;
      if (max_region_bytes != 0) {
        *domain = std::make_unique<SmallRegionsDomain>(*std::move(domain), max_region_bytes);
      }
      group.domains.push_back(std::move(*domain));
    }
    node.group = node.engine->AddGroup(std::move(group)).value();
    nodes_.push_back(std::move(node));
  }
  for (Node& node : nodes_) {
    for (const Node& other : nodes_) node.peers.push_back(node.group->AddPeer(other.group->Address()).value());
  }
  for (Node& node : nodes_) {
    const Status ready = node.group->WaitPeers(node.peers, In(kPatienceMs));
    ASSERT_TRUE(ready.has_value()) << ready.error().message;
  }
}

EngineConformance::Buffer EngineConformance::MakeBuffer(size_t node, uint64_t length, Access access, uint8_t fill) {
  Buffer buffer;
  FabricMemory memory = fabric_->Allocate(length).value();
  buffer.data = static_cast<std::byte*>(memory.address);
  if (fill != 0) std::memset(buffer.data, fill, length);  // it is zero already, and perhaps huge
  DomainGroup* group = nodes_[node].group;
  buffer.here = group->RegisterMemory(buffer.data, length, MemoryKind::kHost, access).value();
  if (access == Access::kRemoteWrite) {
    buffer.there = DomainGroup::ParseDescriptor(group->Describe(buffer.here).value()).value();
  }
  nodes_[node].memory.push_back(std::move(memory));
  return buffer;
}

void EngineConformance::Expect(size_t node, uint32_t immediate, uint64_t count, EngineOutcome& outcome) {
  const Status status =
      nodes_[node].group->ExpectImmediate(immediate, static_cast<uint32_t>(count), In(kPatienceMs), outcome.callback());
  ASSERT_TRUE(status.has_value()) << status.error().message;
}

void EngineConformance::Step() {
  fabric_->Step();
  for (Node& node : nodes_) {
    if (node.engine) node.engine->Step();
  }
}

bool EngineConformance::Until(const std::string& what, const std::function<bool()>& condition) {
  const Deadline patience = Deadline::After(SteadyClock::Get(), kPatienceMs * 1000);
  while (!condition()) {
    if (patience.Passed(SteadyClock::Get())) {
      ADD_FAILURE() << "waited in vain until " << what;
      return false;
    }
    if (GetParam().threads) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    } else {
      Step();
    }
  }
  return true;
}

void EngineConformance::ExpectGood(const Transfer& transfer) {
  const Status status = transfer.Wait(In(kPatienceMs));
  EXPECT_TRUE(status.has_value()) << status.error().message;
}

void EngineConformance::Kill(size_t node) {
  static_cast<void>(nodes_[node].engine->Close(In(10'000)));
  nodes_[node].engine.reset();
}

void EngineConformance::Fill(std::byte* data, uint64_t length, uint64_t seed) {
  for (uint64_t at = 0; at < length; at += 8) {
    const uint64_t word = PatternWord(seed, at / 8);
    std::memcpy(data + at, &word, std::min<uint64_t>(8, length - at));
  }
}

bool EngineConformance::Holds(const std::byte* data, uint64_t length, uint64_t seed) {
  for (uint64_t at = 0; at < length; at += 8) {
    const uint64_t word = PatternWord(seed, at / 8);
    if (std::memcmp(data + at, &word, std::min<uint64_t>(8, length - at)) != 0) return false;
  }
  return true;
}

}  // namespace jax_fabric::conformance
