// Grants over a transport: memory that was taken back from a writer in the middle of its work is the owner's alone.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "csrc/engine/domains/conformance/engine_suite.h"

namespace jax_fabric::conformance {
namespace {

constexpr uint64_t kPage = 4096, kPages = 64, kBytes = kPage * kPages;

bool IsAll(const std::byte* data, uint8_t value) {
  return std::all_of(data, data + kBytes, [&](std::byte each) { return each == std::byte{value}; });
}

TEST_P(EngineConformance, NothingLandsAfterARevocation) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  DomainGroup& writer = *nodes_[0].group;
  DomainGroup& owner = *nodes_[1].group;
  const Buffer source = MakeBuffer(0, kBytes, Access::kLocalOnly, 0x11);
  const Buffer target = MakeBuffer(1, kBytes);
  EXPECT_EQ(owner.OpenGrant(nodes_[1].peers[0], Immediate(1)).error().code, ErrorCode::kFailedPrecondition);
  for (Node& node : nodes_) {
    ASSERT_TRUE(node.group->ReceiveMessages({.buffers = 4, .max_bytes = 512, .on_message = [](PeerHandle, ByteView) {}})
                    .has_value());
  }
  std::vector<uint64_t> pages(kPages);
  std::iota(pages.begin(), pages.end(), 0);
  int done = 0, cancelled = 0;
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    const uint32_t immediate = Immediate(1);
    const WriteGrant grant = owner.OpenGrant(nodes_[1].peers[0], immediate).value();
    EngineOutcome expectation, revoked;
    Expect(1, immediate, 1'000'000, expectation);
    std::vector<Transfer> transfers;
    const PagedWrites write{.peer = nodes_[0].peers[1],
                            .page_length = kPage,
                            .source = source.here,
                            .source_pages = {pages, kPage, 0},
                            .target = &target.there,
                            .target_pages = {pages, kPage, 0},
                            .immediate = immediate};
    for (int i = 0; i < 20; ++i) {
      RequestOptions options = Patient();
      options.grant = grant;
      transfers.push_back(writer.WritePages(write, std::move(options)).value());
    }
    if (GetParam().threads) {
      std::this_thread::sleep_for(std::chrono::microseconds(50 * round));
    } else {
      for (int i = 0; i < 4 * round; ++i) Step();
    }
    ASSERT_TRUE(owner.RevokeGrant(grant, In(60'000), revoked.callback()).has_value());
    Until("the grant is over", [&] { return revoked.done(); });
    ASSERT_TRUE(revoked.ok()) << revoked.error.message;
    std::memset(target.data, 0xee, kBytes);
    EXPECT_EQ(expectation.calls.load(), 1);
    EXPECT_EQ(expectation.error.code, ErrorCode::kCancelled);
    for (const Transfer& transfer : transfers) {
      const Status status = transfer.Wait(In(60'000));
      ++(status.has_value() ? done : cancelled);
      if (!status.has_value()) {
        EXPECT_EQ(status.error().code, ErrorCode::kCancelled) << status.error().message;
      }
    }
    RequestOptions options = Patient();
    options.grant = grant;
    const Status late = writer.WritePages(write, std::move(options)).value().Wait(In(60'000));
    ASSERT_FALSE(late.has_value());
    EXPECT_EQ(late.error().code, ErrorCode::kCancelled) << late.error().message;
    for (int i = 0; i < 50; ++i) {
      if (GetParam().threads) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      } else {
        Step();
      }
    }
    ASSERT_TRUE(IsAll(target.data, 0xee));
  }
  // With threads the writer may be quicker than the owner, each time.
  EXPECT_TRUE(GetParam().threads || cancelled > 0);
}

}  // namespace
}  // namespace jax_fabric::conformance
