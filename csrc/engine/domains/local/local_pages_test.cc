// Pages that the local domain posts many at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "csrc/engine/domains/local/local_test_util.h"
#include "csrc/engine/domains/local/mailbox_layout.h"

namespace jax_fabric {
namespace {

constexpr uint32_t kImmediate = 77;

class LocalPages : public ::testing::Test {
 protected:
  LocalPages() { Open({}); }

  void Open(const LocalDomainOptions& options, uint64_t page_bytes = 64, uint64_t pages = 1000) {
    page_bytes_ = page_bytes;
    pages_ = pages;
    sender_ = Make(options);
    receiver_ = Make(options);
    peer_ = sender_->AddPeer(receiver_->address()).value();
    source_.resize(pages_ * page_bytes_);
    target_.assign(pages_ * page_bytes_, std::byte{0});
    for (size_t i = 0; i < source_.size(); ++i) source_[i] = static_cast<std::byte>(i * 7 + i / page_bytes_);
    from_.resize(pages_);
    std::iota(from_.begin(), from_.end(), uint64_t{0});
    for (uint64_t& offset : from_) offset *= page_bytes_;
    to_ = from_;
    std::shuffle(to_.begin(), to_.end(), std::mt19937(1));
    source_region_ = Register(*sender_, source_.data(), source_.size(), Access::kLocalOnly);
    target_region_ = Register(*receiver_, target_.data(), target_.size());
  }

  PagesRequest Request(uint64_t first, uint32_t count) const {
    PagesRequest request;
    request.peer = peer_;
    request.context = 5;
    request.source = source_.data();
    request.local_key = source_region_.local_key;
    request.length = page_bytes_;
    request.remote_address = target_region_.remote_address;
    request.remote_key = target_region_.remote_key;
    request.source_offsets = from_.data() + first;
    request.target_offsets = to_.data() + first;
    request.count = count;
    request.transfer_bytes = pages_ * page_bytes_;
    request.immediate = kImmediate;
    return request;
  }

  // Of one kind, seen by a domain.
  static uint64_t Count(const std::vector<Completion>& completions, CompletionKind kind) {
    uint64_t count = 0;
    for (const Completion& each : completions) count += each.kind == kind ? each.count : 0;
    return count;
  }

  bool Arrived(uint64_t page) const {
    return std::memcmp(target_.data() + to_[page], source_.data() + from_[page], page_bytes_) == 0;
  }

  uint64_t page_bytes_ = 0;
  uint64_t pages_ = 0;
  std::unique_ptr<Domain> sender_;
  std::unique_ptr<Domain> receiver_;
  PeerId peer_ = 0;
  std::vector<std::byte> source_;
  std::vector<std::byte> target_;
  std::vector<uint64_t> from_;
  std::vector<uint64_t> to_;
  MemoryRegion source_region_;
  MemoryRegion target_region_;
  std::vector<Completion> sent_;
  std::vector<Completion> received_;
};

TEST_F(LocalPages, ManyAtOnceEachWithItsCompletionAndImmediate) {
  uint64_t done = 0;
  int posts = 0;
  while (done < pages_) {
    uint32_t posted = 0;
    ASSERT_EQ(sender_->PostPages(Request(done, static_cast<uint32_t>(pages_ - done)), posted), PostResult::kPosted);
    ASSERT_GT(posted, 0u);
    done += posted;
    ++posts;
  }
  EXPECT_EQ(done, pages_);
  EXPECT_LT(posts, 20);
  ASSERT_TRUE(Until(*sender_, sent_, [&] { return Count(sent_, CompletionKind::kWrite) == pages_; }));
  ASSERT_TRUE(Until(*receiver_, received_, [&] { return Count(received_, CompletionKind::kImmediate) == pages_; }));
  for (const Completion& each : sent_) EXPECT_EQ(each.context, 5u);
  for (const Completion& each : received_) EXPECT_EQ(each.immediate, kImmediate);
  for (uint64_t page = 0; page < pages_; ++page) EXPECT_TRUE(Arrived(page)) << page;
}

TEST_F(LocalPages, OnlyEverySecondPage) {
  PagesRequest request = Request(0, 4);
  request.step = 2;
  uint32_t posted = 0;
  ASSERT_EQ(sender_->PostPages(request, posted), PostResult::kPosted);
  EXPECT_EQ(posted, 4u);
  for (uint64_t page = 0; page < 8; ++page) EXPECT_EQ(Arrived(page), page % 2 == 0) << page;
}

TEST_F(LocalPages, StopsBeforeAPageThatIsOutside) {
  for (std::vector<uint64_t>* offsets : {&from_, &to_}) {
    for (const uint64_t bad :
         {pages_ * page_bytes_, pages_ * page_bytes_ - page_bytes_ + 1, ~uint64_t{0}, ~uint64_t{0} - page_bytes_}) {
      const uint64_t good = std::exchange((*offsets)[3], bad);
      uint32_t posted = 0;
      ASSERT_EQ(sender_->PostPages(Request(0, 10), posted), PostResult::kPosted);
      EXPECT_EQ(posted, 3u);
      EXPECT_EQ(sender_->PostPages(Request(3, 7), posted), PostResult::kRejected);
      EXPECT_NE(sender_->last_error().find("inside"), std::string::npos) << sender_->last_error();
      (*offsets)[3] = good;
    }
  }
}

TEST_F(LocalPages, RefusesWhatIsNotRegistered) {
  uint32_t posted = 0;
  PagesRequest request = Request(0, 10);
  request.remote_key ^= uint64_t{1} << 40;
  EXPECT_EQ(sender_->PostPages(request, posted), PostResult::kRejected);
  request = Request(0, 10);
  request.local_key ^= uint64_t{1} << 40;
  EXPECT_EQ(sender_->PostPages(request, posted), PostResult::kRejected);
  // A batch leaves nothing held.
  ASSERT_EQ(sender_->PostPages(Request(0, 10), posted), PostResult::kPosted);
  EXPECT_TRUE(sender_->DeregisterMemory(source_region_).has_value());
  EXPECT_TRUE(receiver_->DeregisterMemory(target_region_).has_value());
}

TEST_F(LocalPages, NoMoreThanMayBeOutstanding) {
  LocalDomainOptions options;
  options.max_outstanding = 16;
  Open(options);
  uint32_t posted = 0;
  ASSERT_EQ(sender_->PostPages(Request(0, 100), posted), PostResult::kPosted);
  EXPECT_EQ(posted, 16u);
  EXPECT_EQ(sender_->PostPages(Request(16, 84), posted), PostResult::kAgain);
  ASSERT_TRUE(Until(*sender_, sent_, [&] { return Count(sent_, CompletionKind::kWrite) == 16; }));
  EXPECT_EQ(sender_->PostPages(Request(16, 84), posted), PostResult::kPosted);
}

// Short ones, those that are copied in two halves, and those that are too long for one post or for one slice.
TEST_F(LocalPages, StreamedPagesArriveWhole) {
  LocalDomainOptions options;
  options.streaming_pages_bytes = 1;
  for (const uint64_t page_bytes : {64u, 20'000u, 80'000u, 300'000u}) {
    Open(options, page_bytes, 40);
    uint32_t posted = 0;
    for (uint64_t done = 0; done < pages_; done += posted) {
      ASSERT_EQ(sender_->PostPages(Request(done, static_cast<uint32_t>(pages_ - done)), posted), PostResult::kPosted);
    }
    sent_.clear();
    ASSERT_TRUE(Until(*sender_, sent_, [&] { return Count(sent_, CompletionKind::kWrite) == pages_; }));
    for (uint64_t page = 0; page < pages_; ++page) EXPECT_TRUE(Arrived(page)) << page << " of " << page_bytes;
  }
}

TEST(MailboxSlot, IsFullInItsOwnLapOnly) {
  constexpr uint32_t kSlots = 4;
  for (const uint64_t lap :
       {uint64_t{0}, uint64_t{1}, uint64_t{0xfffd}, uint64_t{0xfffe}, uint64_t{0xffff}, uint64_t{1} << 40}) {
    const uint64_t position = lap * kSlots + 3;
    const uint64_t slot = local::MakeSlot(position, kSlots, 0xdeadbeef, 0xabcd);
    EXPECT_TRUE(local::SlotIsFull(slot, position, kSlots));
    EXPECT_FALSE(local::SlotIsFull(slot, position + kSlots, kSlots)) << "the lap after";
    EXPECT_FALSE(local::SlotIsFull(0, position, kSlots)) << "never written";
    EXPECT_EQ(local::SlotValue(slot), 0xdeadbeefu);
    EXPECT_EQ(local::SlotCount(slot), 0xabcdu);
  }
}

}  // namespace
}  // namespace jax_fabric
