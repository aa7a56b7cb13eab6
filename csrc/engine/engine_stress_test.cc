// Threads against the engine: what ThreadSanitizer should see. Over the local domain.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/engine/domains/local/local_domain.h"
#include "csrc/engine/transfer_engine.h"

namespace jax_fabric {
namespace {

Deadline After(int64_t milliseconds) { return Deadline::After(SteadyClock::Get(), milliseconds * 1000); }

struct Node {
  std::unique_ptr<TransferEngine> engine;
  DomainGroup* group = nullptr;
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 16);
  RegisteredMemory registered;
  RemoteMemory remote;

  explicit Node(const std::string& name, EngineOptions options = {}) {
    engine = TransferEngine::Create(std::move(options)).value();
    group = AddGroup(name);
    registered = group->RegisterMemory(memory.data(), memory.size(), MemoryKind::kHost, Access::kRemoteWrite).value();
    remote = DomainGroup::ParseDescriptor(group->Describe(registered).value()).value();
  }
  DomainGroup* AddGroup(const std::string& name) {
    GroupOptions group_options;
    group_options.name = name;
    group_options.max_requests = 256;
    group_options.domains.push_back(CreateLocalDomain({}).value());
    return engine->AddGroup(std::move(group_options)).value();
  }
};

PeerHandle Connect(Node& from, Node& to) {
  const PeerHandle peer = from.group->AddPeer(to.group->Address()).value();
  EXPECT_TRUE(from.group->WaitPeers({&peer, 1}, After(10'000)).has_value());
  return peer;
}

template <typename Done>
void Until(Done done) {
  for (int i = 0; i < 60'000 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(done());
}

// 8 threads, 10^4 requests each, of every kind; the pool is smaller than what is submitted at once.
TEST(EngineStress, ManySubmitters) {
  constexpr int kThreads = 8, kRequests = 10'000;
  Node a("a"), b("b");
  const PeerHandle to_b = Connect(a, b);
  Connect(b, a);
  const uint32_t immediates = b.group->AllocateImmediates(kThreads).value();
  std::atomic<int> received{0}, worker_calls{0}, thread_calls{0};
  const auto count = [](void* context, const Error* error) {
    if (error == nullptr) static_cast<std::atomic<int>*>(context)->fetch_add(1);
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    ASSERT_TRUE(b.group->ExpectImmediate(immediates + t, kRequests, After(120'000), {count, &received}).has_value());
    threads.emplace_back([&, t] {
      const uint64_t offset = t * 4096;
      for (int i = 0; i < kRequests; ++i) {
        RequestOptions options{.deadline = After(60'000), .on_worker = {count, &worker_calls}};
        if (i % 16 == 0) {
          options.on_done = [&](const Status& status) { thread_calls.fetch_add(status.has_value()); };
        }
        Result<Transfer> transfer;
        if (i % 2 == 0) {
          const SingleWrite write{.peer = to_b,
                                  .source = a.registered,
                                  .source_offset = offset,
                                  .target = &b.remote,
                                  .target_offset = offset,
                                  .length = static_cast<uint64_t>(i % 100),
                                  .immediate = immediates + t};
          transfer = a.group->Write(write, std::move(options));
        } else {
          const BarrierTarget target{to_b, &b.remote, immediates + t};
          transfer = a.group->Barrier({&target, 1}, std::move(options));
        }
        ASSERT_TRUE(transfer.has_value()) << transfer.error().message;
        if (i % 100 == 0) {
          ASSERT_TRUE(transfer->Wait(After(60'000)).has_value());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Until([&] { return received.load() == kThreads; });
  Until(
      [&] { return worker_calls.load() == kThreads * kRequests && thread_calls.load() == kThreads * kRequests / 16; });
  EXPECT_TRUE(a.engine->Close(After(10'000)).has_value());
}

// Callbacks that post again: a ping-pong of two prepared scatters, each posted by the arrival of the other.
struct Player {
  DomainGroup* group = nullptr;
  std::unique_ptr<PreparedScatter> scatter;
  uint32_t immediate = 0;
  std::atomic<bool> sent{true};
  std::atomic<int> rounds{0};
  std::atomic<int> errors{0};

  static void OnSent(void* context, const Error* error) {
    auto* self = static_cast<Player*>(context);
    if (error != nullptr) self->errors.fetch_add(1);
    self->Continue(1);
  }
  static void OnReceived(void* context, const Error* error) {
    auto* self = static_cast<Player*>(context);
    if (error != nullptr) {
      self->errors.fetch_add(1);
      return;
    }
    self->rounds.fetch_add(1);
    if (!self->group->ExpectImmediate(self->immediate, 1, After(60'000), {OnReceived, self}).has_value()) {
      self->errors.fetch_add(1);
    }
    self->Continue(1);
  }
  // Posts when both the last post has ended and the answer is in; worker only.
  void Continue(int tokens) {
    pending += tokens;
    if (pending < 2) return;
    pending -= 2;
    if (!scatter->Post(After(60'000), {OnSent, this}).has_value()) errors.fetch_add(1);
  }
  int pending = 0;
};

void Prepare(Player& player, Node& own, Node& peer, PeerHandle handle, uint32_t own_immediate, uint32_t immediate) {
  player.group = own.group;
  player.immediate = own_immediate;
  ScatterEntry entry;
  entry.peer = handle;
  entry.source = own.memory.data();
  entry.source_memory = own.registered;
  entry.target = &peer.remote;
  entry.target_offset = 4096;
  entry.length = 64;
  entry.immediate = immediate;
  player.scatter = own.group->PrepareScatter({&entry, 1}).value();
}

TEST(EngineStress, CallbacksThatSubmitAndCloseWhileBusy) {
  Node a("a"), b("b");
  const PeerHandle to_b = Connect(a, b), to_a = Connect(b, a);
  const uint32_t at_a = a.group->AllocateImmediates(1).value(), at_b = b.group->AllocateImmediates(1).value();
  Player ping, pong;
  Prepare(ping, a, b, to_b, at_a, at_b);
  Prepare(pong, b, a, to_a, at_b, at_a);
  pong.pending = 1;  // it answers only
  ASSERT_TRUE(a.group->ExpectImmediate(at_a, 1, After(60'000), {Player::OnReceived, &ping}).has_value());
  ASSERT_TRUE(b.group->ExpectImmediate(at_b, 1, After(60'000), {Player::OnReceived, &pong}).has_value());
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(ping.scatter->Post(After(60'000), {Player::OnSent, &ping}).has_value());
  Until([&] { return ping.rounds.load() >= 2000; });
  const auto took = std::chrono::steady_clock::now() - start;
  RecordProperty("round_trip_ns", std::to_string(std::chrono::nanoseconds(took).count() / ping.rounds.load()));
  EXPECT_EQ(ping.errors.load() + pong.errors.load(), 0);
  EXPECT_TRUE(a.engine->Close(After(10'000)).has_value());
  EXPECT_TRUE(b.engine->Close(After(10'000)).has_value());
}

// Submitters go on while the engine closes: each request that was accepted has exactly one end.
TEST(EngineStress, CloseWhileSubmitting) {
  for (int round = 0; round < 10; ++round) {
    Node a("a"), b("b");
    const PeerHandle to_b = Connect(a, b);
    std::atomic<int> accepted{0}, ended{0}, expected{0}, fired{0};
    std::atomic<bool> stop{false};
    const auto count = [](void* context, const Error*) { static_cast<std::atomic<int>*>(context)->fetch_add(1); };
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const uint32_t immediate = a.group->AllocateImmediates(64).value();
        const BarrierTarget target{to_b, &b.remote, 1};
        for (int i = 0; !stop; ++i) {
          auto transfer = a.group->Barrier({&target, 1}, {.deadline = After(10'000),
                                                          .on_worker = {count, &ended},
                                                          .on_done = [&](const Status&) { ended.fetch_add(1); }});
          accepted.fetch_add(2 * transfer.has_value());
          expected.fetch_add(
              a.group->ExpectImmediate(immediate + i % 64, 1, After(10'000), {count, &fired}).has_value());
          if (t == 0) a.group->CancelExpectation(immediate + i % 64);
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(a.engine->Close(After(10'000)).has_value());
    stop = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ended.load(), accepted.load());
    EXPECT_EQ(fired.load(), expected.load());
  }
}

TEST(EngineStress, EightEnginesAndManyGroupsAWorker) {
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < 8; ++i) nodes.push_back(std::make_unique<Node>("n" + std::to_string(i)));
  Node hub("hub", {.workers = 1});
  for (int i = 0; i < 4; ++i) hub.AddGroup("more" + std::to_string(i));
  std::vector<std::thread> threads;
  for (auto& node : nodes) {
    threads.emplace_back([&, raw = node.get()] {
      const PeerHandle peer = Connect(*raw, hub);
      const BarrierTarget target{peer, &hub.remote, 7};
      for (int i = 0; i < 200; ++i) {
        const auto transfer = raw->group->Barrier({&target, 1}, {.deadline = After(30'000)});
        ASSERT_TRUE(transfer.has_value() && transfer->Wait(After(30'000)).has_value());
      }
      EXPECT_TRUE(raw->engine->Close(After(10'000)).has_value());
    });
  }
  for (std::thread& thread : threads) thread.join();
  Until([&] { return hub.group->stray_immediates() == 1600; });
}

TEST(EngineStress, Watchers) {
  Node a("a");
  std::atomic<uint64_t> last{0};
  auto watcher = a.engine->Watch(0, [&](uint64_t, uint64_t value) { last.store(value); }).value();
  for (uint64_t i = 1; i <= 1000; ++i) {
    std::atomic_ref(*watcher->word_address()).store(i, std::memory_order_release);
  }
  Until([&] { return last.load() == 1000; });
}

TEST(EngineStress, CloseFromCallbacksIsRefused) {
  Node a("a"), b("b");
  const PeerHandle to_b = Connect(a, b);
  const BarrierTarget target{to_b, &b.remote, 1};
  std::atomic<int> refused{0};
  struct Context {
    Node* node;
    std::atomic<int>* refused;
  } context{&a, &refused};
  const auto close = [](void* raw, const Error*) {
    auto* c = static_cast<Context*>(raw);
    c->refused->fetch_add(!c->node->engine->Close(After(1000)).has_value());
  };
  const auto transfer = a.group->Barrier({&target, 1}, {.deadline = After(10'000),
                                                        .on_worker = {close, &context},
                                                        .on_done = [&](const Status&) { close(&context, nullptr); }});
  ASSERT_TRUE(transfer.has_value());
  Until([&] { return refused.load() == 2; });
}

}  // namespace
}  // namespace jax_fabric
