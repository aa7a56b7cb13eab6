// The engine over the local domain: the shortest use of its public functions, with threads, as documentation and
// smoke test.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "csrc/engine/domains/local/local_domain.h"
#include "csrc/engine/transfer_engine.h"

namespace jax_fabric {
namespace {

class LocalEngineTest : public ::testing::Test {
 protected:
  struct Side {
    std::unique_ptr<TransferEngine> engine;
    DomainGroup* group = nullptr;
  };

  static Side Make(const std::string& name) {
    Side side;
    side.engine = TransferEngine::Create({}).value();
    GroupOptions options;
    options.name = name;
    options.domains.push_back(CreateLocalDomain({}).value());
    side.group = side.engine->AddGroup(std::move(options)).value();
    return side;
  }

  Deadline In(int64_t milliseconds) const { return Deadline::After(SteadyClock::Get(), milliseconds * 1000); }

  static WorkerCallback CountInto(std::atomic<int>& count) {
    return {[](void* context, const Error* error) {
              EXPECT_EQ(error, nullptr) << error->message;
              static_cast<std::atomic<int>*>(context)->fetch_add(1);
            },
            &count};
  }

  static void Await(const std::atomic<int>& count, int value) {
    for (int i = 0; i < 5000 && count.load() < value; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_EQ(count.load(), value);
  }

  Side a_ = Make("a");
  Side b_ = Make("b");
};

TEST_F(LocalEngineTest, ScatterAndImmediate) {
  const PeerHandle to_b = a_.group->AddPeer(b_.group->Address()).value();
  const PeerHandle to_a = b_.group->AddPeer(a_.group->Address()).value();
  EXPECT_EQ(a_.group->AddPeer(b_.group->Address()).value(), to_b);
  ASSERT_TRUE(a_.group->WaitPeers({&to_b, 1}, In(2000)).has_value());
  ASSERT_TRUE(b_.group->WaitPeers({&to_a, 1}, In(2000)).has_value());

  std::vector<std::byte> source(4096, std::byte{7}), target(8192);
  const auto from =
      a_.group->RegisterMemory(source.data(), source.size(), MemoryKind::kHost, Access::kLocalOnly).value();
  const auto to =
      b_.group->RegisterMemory(target.data(), target.size(), MemoryKind::kHost, Access::kRemoteWrite).value();
  const RemoteMemory remote = DomainGroup::ParseDescriptor(b_.group->Describe(to).value()).value();
  EXPECT_EQ(a_.group->MapRemote(to_b, remote), target.data());
  const uint32_t immediate = b_.group->AllocateImmediates(1).value();

  ScatterEntry entry;
  entry.peer = to_b;
  entry.source = source.data();
  entry.source_memory = from;
  entry.target = &remote;
  entry.target_offset = 1000;
  entry.length = 4096;
  entry.immediate = immediate;
  const auto scatter = a_.group->PrepareScatter({&entry, 1}).value();

  std::atomic<int> sent{0}, received{0};
  for (int round = 1; round <= 100; ++round) {
    source.assign(source.size(), static_cast<std::byte>(round));
    scatter->SetLength(0, round);
    ASSERT_TRUE(b_.group->ExpectImmediate(immediate, 1, In(5000), CountInto(received)).has_value());
    ASSERT_TRUE(scatter->Post(In(5000), CountInto(sent)).has_value());
    Await(received, round);
    Await(sent, round);
    EXPECT_EQ(target[999 + round], static_cast<std::byte>(round));
    EXPECT_EQ(target[1000 + round], std::byte{0});
  }
  EXPECT_TRUE(a_.engine->Close(In(2000)).has_value());
  EXPECT_TRUE(a_.engine->Close(In(2000)).has_value());
  EXPECT_EQ(scatter->Post(In(100), {}).error().code, ErrorCode::kCancelled);
}

TEST_F(LocalEngineTest, WritePagesBarrierSendReceive) {
  const PeerHandle to_b = a_.group->AddPeer(b_.group->Address()).value();
  const PeerHandle to_a = b_.group->AddPeer(a_.group->Address()).value();
  ASSERT_TRUE(a_.group->WaitPeers({&to_b, 1}, In(2000)).has_value());
  ASSERT_TRUE(b_.group->WaitPeers({&to_a, 1}, In(2000)).has_value());
  std::vector<std::byte> source(1 << 16), target(1 << 16);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 13 + i / 256);
  const auto from =
      a_.group->RegisterMemory(source.data(), source.size(), MemoryKind::kHost, Access::kLocalOnly).value();
  const auto to =
      b_.group->RegisterMemory(target.data(), target.size(), MemoryKind::kHost, Access::kRemoteWrite).value();
  const RemoteMemory remote = DomainGroup::ParseDescriptor(b_.group->Describe(to).value()).value();
  const uint32_t immediate = b_.group->AllocateImmediates(2).value();
  std::atomic<int> received{0};

  SingleWrite write{.peer = to_b, .source = from, .target = &remote, .length = source.size(), .immediate = immediate};
  const auto parts = static_cast<uint32_t>(b_.group->WriteImmediates(to_a, source.size()).value());
  ASSERT_TRUE(b_.group->ExpectImmediate(immediate, parts, In(5000), CountInto(received)).has_value());
  Transfer transfer = a_.group->Write(write, {.deadline = In(5000)}).value();
  EXPECT_TRUE(transfer.Wait(In(5000)).has_value());
  Await(received, 1);
  EXPECT_EQ(source, target);

  target.assign(target.size(), std::byte{0});
  const std::vector<uint64_t> source_pages{3, 1, 2}, target_pages{0, 5, 1};
  PagedWrites pages{.peer = to_b,
                    .page_length = 1000,
                    .source = from,
                    .source_pages = {source_pages, 1024, 8},
                    .target = &remote,
                    .target_pages = {target_pages, 2048, 16},
                    .immediate = immediate};
  ASSERT_TRUE(b_.group->ExpectImmediate(immediate, 3, In(5000), CountInto(received)).has_value());
  EXPECT_TRUE(a_.group->WritePages(pages, {.deadline = In(5000)}).value().Wait(In(5000)).has_value());
  Await(received, 2);
  EXPECT_TRUE(std::equal(source.begin() + 3 * 1024 + 8, source.begin() + 3 * 1024 + 1008, target.begin() + 16));
  EXPECT_TRUE(std::equal(source.begin() + 1 * 1024 + 8, source.begin() + 1 * 1024 + 1008, target.begin() + 16 + 10240));

  BarrierTarget barrier{to_b, &remote, immediate + 1};
  ASSERT_TRUE(b_.group->ExpectImmediate(immediate + 1, 1, In(5000), CountInto(received)).has_value());
  EXPECT_TRUE(a_.group->Barrier({&barrier, 1}, {.deadline = In(5000)}).value().Wait(In(5000)).has_value());
  Await(received, 3);

  std::atomic<int> messages{0}, sent{0};
  ASSERT_TRUE(b_.group
                  ->ReceiveMessages({.buffers = 4,
                                     .max_bytes = 256,
                                     .on_message =
                                         [&](PeerHandle, ByteView message) {
                                           EXPECT_EQ(message.size(), 5u);
                                           messages.fetch_add(1);
                                         }})
                  .has_value());
  const Bytes hello(5, std::byte{1});
  for (int i = 0; i < 100; ++i) {
    RequestOptions options{.deadline = In(5000), .on_done = [&](const Status& status) {
                             EXPECT_TRUE(status.has_value()) << status.error().message;
                             sent.fetch_add(1);
                           }};
    ASSERT_TRUE(a_.group->Send(to_b, hello, std::move(options)).has_value());
  }
  Await(messages, 100);
  Await(sent, 100);
}

// The worker sleeps when nothing happens, and nothing wakes it when a word changes. Without pollers it looks around
// every 100 ms.
TEST_F(LocalEngineTest, PollersOfAGroupAreCalledOnItsWorkerAlsoWhenItSleeps) {
  for (const auto urgency : {PollerSet::Urgency::kRelaxed, PollerSet::Urgency::kUrgent}) {
    std::atomic<uint64_t> word{0}, seen{0};
    std::atomic<bool> on_worker{true};
    auto poller = a_.group->AddPoller(
        [&] {
          on_worker = on_worker && Waker::OnWorker();
          // Acquire, with the store below.
          return seen.exchange(word.load(std::memory_order_acquire)) != word;
        },
        urgency);
    std::vector<int64_t> late_ns;
    for (uint64_t value = 1; value <= 21; ++value) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than the worker stays awake
      const int64_t begin_ns = SteadyClock::Get().NowNs();
      word.store(value, std::memory_order_release);
      const Deadline deadline = In(20'000);
      while (seen < value && !deadline.Passed(SteadyClock::Get())) std::this_thread::yield();
      ASSERT_EQ(seen, value);
      late_ns.push_back(SteadyClock::Get().NowNs() - begin_ns);
    }
    std::nth_element(late_ns.begin(), late_ns.begin() + 10, late_ns.end());
    EXPECT_LT(late_ns[10], 20'000'000);
    poller.reset();
    word = 22;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(seen, 21u);
    EXPECT_TRUE(on_worker);
  }
}

}  // namespace
}  // namespace jax_fabric
