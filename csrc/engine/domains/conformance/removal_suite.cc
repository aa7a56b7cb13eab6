// Peers that are removed while they are written to from all sides: every request ends once.
#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "csrc/engine/domains/conformance/engine_suite.h"

namespace jax_fabric::conformance {
namespace {

// How many requests ended, and as what.
struct Endings {
  std::atomic<int> good{0};
  std::atomic<int> lost{0};  // kUnavailable, with the peer's name
  std::atomic<int> other{0};
  int all() const { return good.load() + lost.load() + other.load(); }

  WorkerCallback callback() {
    return {[](void* context, const Error* error) {
              auto* self = static_cast<Endings*>(context);
              if (error == nullptr) {
                self->good.fetch_add(1);
              } else if (error->code == ErrorCode::kUnavailable && error->message.find("node1") != std::string::npos) {
                self->lost.fetch_add(1);
              } else {
                self->other.fetch_add(1);
              }
            },
            this};
  }
};

TEST_P(EngineConformance, APeerIsRemovedWithAThousandWritesInFlight) {
  constexpr int kThreads = 4, kWrites = 250;
  constexpr uint64_t kBytes = 16 << 10;
  ASSERT_NO_FATAL_FAILURE(MakeNodes(3));
  DomainGroup& group = *nodes_[0].group;
  const Buffer source = MakeBuffer(0, kBytes, Access::kLocalOnly);
  const std::array<Buffer, 3> targets{Buffer{}, MakeBuffer(1, kBytes), MakeBuffer(2, kBytes)};
  Fill(source.data, kBytes, 9);
  Endings to_removed, to_other;
  const auto submit = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const size_t peer = i % 10 == 0 ? 2 : 1;
      const SingleWrite write{
          .peer = nodes_[0].peers[peer], .source = source.here, .target = &targets[peer].there, .length = kBytes};
      RequestOptions options = Patient();
      options.on_worker = (peer == 1 ? to_removed : to_other).callback();
      ASSERT_TRUE(group.Write(write, std::move(options)).has_value());
    }
  };
  if (GetParam().threads) {
    std::vector<std::thread> threads;
    std::atomic<bool> removed{false};
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        submit(kWrites / 2);
        while (!removed.load()) std::this_thread::yield();
        submit(kWrites / 2);
      });
    }
    Until("some have ended", [&] { return to_removed.all() > 50; });
    group.RemovePeer(nodes_[0].peers[1]);
    removed.store(true);
    for (std::thread& thread : threads) thread.join();
  } else {
    submit(kThreads * kWrites / 2);
    Until("some have ended", [&] { return to_removed.all() > 50; });
    group.RemovePeer(nodes_[0].peers[1]);
    submit(kThreads * kWrites / 2);
  }
  Until("all have ended", [&] { return to_removed.all() + to_other.all() >= kThreads * kWrites; });
  EXPECT_EQ(to_removed.all() + to_other.all(), kThreads * kWrites);
  EXPECT_EQ(to_removed.other.load(), 0);
  EXPECT_GT(to_removed.lost.load(), 0);
  EXPECT_EQ(to_other.good.load(), to_other.all());
  EXPECT_TRUE(Holds(targets[2].data, kBytes, 9));
}

// The first write that the other side refuses is the cause, whatever happens to the rest of the request.
TEST_P(EngineConformance, TheFirstCauseOfAPagedWriteIsKept) {
  constexpr uint64_t kPage = 256, kPages = 128;
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const Buffer source = MakeBuffer(0, kPages * kPage, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, kPages * kPage);
  // One page of 128 is outside of what the peer has registered: this side believes that there is more.
  RemoteMemory longer = target.there;
  longer.length = 2 * kPages * kPage;
  for (const uint64_t bad : {uint64_t{0}, kPages / 2, kPages - 1}) {
    SCOPED_TRACE(bad);
    std::vector<uint64_t> pages(kPages), to(kPages);
    for (uint64_t i = 0; i < kPages; ++i) pages[i] = to[i] = i;
    to[bad] = kPages + 7;
    const PagedWrites write{.peer = nodes_[0].peers[1],
                            .page_length = kPage,
                            .source = source.here,
                            .source_pages = {pages, kPage, 0},
                            .target = &longer,
                            .target_pages = {to, kPage, 0}};
    EngineOutcome outcome;
    RequestOptions options = Patient();
    options.on_worker = outcome.callback();
    const Transfer transfer = nodes_[0].group->WritePages(write, std::move(options)).value();
    EXPECT_FALSE(transfer.Wait(In(60'000)).has_value());
    Until("nothing is in flight", [&] { return transfer.drained(); });
    EXPECT_EQ(outcome.calls.load(), 1);
    EXPECT_NE(outcome.error.code, ErrorCode::kUnavailable) << outcome.error.message;
    EXPECT_NE(outcome.error.message.find("node1"), std::string::npos) << outcome.error.message;
    EXPECT_NE(outcome.error.message.find(" of 128 done"), std::string::npos) << outcome.error.message;
    // The connection is as good as before.
    const SingleWrite good{.peer = nodes_[0].peers[1], .source = source.here, .target = &target.there, .length = kPage};
    ExpectGood(nodes_[0].group->Write(good, Patient()).value());
  }
}

}  // namespace
}  // namespace jax_fabric::conformance
