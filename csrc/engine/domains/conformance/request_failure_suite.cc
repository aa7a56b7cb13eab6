// Requests that fail: each ends once, says why and with whom, and harms no other.
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "csrc/engine/domains/conformance/engine_suite.h"

namespace jax_fabric::conformance {
namespace {

TEST_P(EngineConformance, RefusedByThePeerSaysWhoAndWhy) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const Buffer source = MakeBuffer(0, 4096, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, 4096);
  const Buffer gone = MakeBuffer(1, 4096);
  ASSERT_TRUE(nodes_[1].group->DeregisterMemory(gone.here).has_value());
  RemoteMemory wrong_key = target.there;
  for (RemoteMemory::Nic& nic : wrong_key.nics) nic.remote_key ^= 1;
  RemoteMemory longer = target.there;
  longer.length = 1 << 20;
  SingleWrite write{.peer = nodes_[0].peers[1], .source = source.here, .length = 64};
  struct Case {
    const RemoteMemory& memory;
    uint64_t offset;
  };
  for (const auto& [memory, offset] : {Case{wrong_key, 0}, Case{longer, 5000}, Case{gone.there, 0}}) {
    write.target = &memory;
    write.target_offset = offset;
    const Status status = nodes_[0].group->Write(write, Patient()).value().Wait(In(60'000));
    ASSERT_FALSE(status.has_value());
    EXPECT_NE(status.error().message.find("node1"), std::string::npos) << status.error().message;
    EXPECT_NE(status.error().message.find("node0"), std::string::npos) << status.error().message;
  }
  // What this side can see at once is refused at once.
  write.target = &target.there;
  write.target_offset = 4096 - 63;
  EXPECT_EQ(nodes_[0].group->Write(write, Patient()).error().code, ErrorCode::kOutOfRange);
  write.target_offset = 0;
  write.source_offset = ~uint64_t{0} - 10;
  EXPECT_FALSE(nodes_[0].group->Write(write, Patient()).has_value());
  write.source_offset = 0;
  ExpectGood(nodes_[0].group->Write(write, Patient()).value());
}

struct Workload {
  std::vector<Transfer> to_victim, to_other;
};

// Node 1 dies at each step of what node 0 does with it and with node 2.
TEST_P(EngineConformance, APeerThatDiesAtAnyStepHarmsNobodyElse) {
  // Step k of a stepped engine; k tenths of a millisecond with threads.
  for (int step = 0; step < 40; step += GetParam().threads ? 8 : 1) {
    SCOPED_TRACE(step);
    ASSERT_NO_FATAL_FAILURE(MakeNodes(3));
    constexpr uint64_t kBytes = 1 << 20;
    const Buffer source = MakeBuffer(0, kBytes, Access::kLocalOnly);
    Fill(source.data, kBytes, 4);
    std::vector<Buffer> targets{{}, MakeBuffer(1, kBytes), MakeBuffer(2, kBytes)};
    const uint32_t immediate = Immediate(2);
    const std::vector<uint64_t> pages{5, 3, 8, 1, 0, 9, 7};
    EngineOutcome received, never;
    Workload work;
    Expect(2, immediate, 4 * (nodes_[2].group->WriteImmediates(nodes_[2].peers[0], kBytes).value() + pages.size()),
           received);
    ASSERT_TRUE(nodes_[0].group->ExpectImmediate(Immediate(0), 1, In(300), never.callback()).has_value());
    for (int round = 0; round < 4; ++round) {
      for (size_t peer = 1; peer <= 2; ++peer) {
        auto& transfers = peer == 1 ? work.to_victim : work.to_other;
        const SingleWrite write{.peer = nodes_[0].peers[peer],
                                .source = source.here,
                                .target = &targets[peer].there,
                                .length = kBytes,
                                .immediate = immediate};
        const PagedWrites paged{.peer = nodes_[0].peers[peer],
                                .page_length = 4096,
                                .source = source.here,
                                .source_pages = {pages, 4096, 0},
                                .target = &targets[peer].there,
                                .target_pages = {pages, 4096, 0},
                                .immediate = immediate};
        transfers.push_back(nodes_[0].group->Write(write, Patient()).value());
        transfers.push_back(nodes_[0].group->WritePages(paged, Patient()).value());
      }
    }
    if (GetParam().threads) {
      std::this_thread::sleep_for(std::chrono::microseconds(100 * step));
    } else {
      for (int i = 0; i < step; ++i) Step();
    }
    Kill(1);
    for (const Transfer& each : work.to_other) ExpectGood(each);
    Until("the other one has everything", [&] { return received.done(); });
    EXPECT_TRUE(received.ok()) << received.error.message;
    EXPECT_TRUE(Holds(targets[2].data, kBytes, 4));
    for (const Transfer& each : work.to_victim) {
      const Status status = each.Wait(In(120'000));
      if (status.has_value()) continue;  // it was quick enough
      EXPECT_EQ(status.error().code, ErrorCode::kUnavailable) << status.error().message;
      EXPECT_NE(status.error().message.find("node1"), std::string::npos) << status.error().message;
    }
    Until("the expectation ends", [&] { return never.done(); });
    EXPECT_EQ(never.error.code, ErrorCode::kDeadlineExceeded);
    work = {};
    TearDown();
  }
}

}  // namespace
}  // namespace jax_fabric::conformance
