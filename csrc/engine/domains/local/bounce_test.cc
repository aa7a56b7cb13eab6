// Bounce slots: how memory is written that only its owner reaches. Lanes and tables alone; local_conformance_test has
// the domain over them.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "csrc/engine/domains/local/lane_reader.h"
#include "csrc/engine/domains/local/lane_writer.h"
#include "csrc/engine/domains/local/region_table.h"

namespace jax_fabric::local {
namespace {

class Bounce : public testing::Test {
 protected:
  void SetUp() override {
    MailboxGeometry geometry;
    geometry.lanes = geometry.regions = 4;
    geometry.immediates = 2;  // so that lanes are full often
    geometry.messages = 1;
    geometry.message_bytes = 64;
    mailbox_ = Mailbox::Create(geometry, 77).value();
    regions_ = std::make_unique<RegionTable>(mailbox_);
    writer_ = LaneWriter::Claim(mailbox_, ThisProcess(), 78).value();
    reader_ = LaneReader::Open(*mailbox_, 0);
  }

  static ProcessIdentity ThisProcess() {
    ProcessIdentity process;
    process.pid = static_cast<uint32_t>(getpid());
    return process;
  }

  // What a domain does with what it takes out; the value of an immediate, if it was one.
  std::optional<uint32_t> Take() {
    uint32_t value = 0;
    uint32_t count = 0;
    if (!reader_->TakeImmediate(value, count)) return std::nullopt;
    reader_->PublishTaken();
    if (count != kBounceCount) return value;
    BounceSlot* bounce = reader_->FrontBounce(value);
    if (bounce == nullptr) return std::nullopt;
    const bool landed = regions_->Land(bounce->key, bounce->address, {bounce->bytes, bounce->length});
    reader_->FinishBounce(*bounce, landed ? BounceState::kLanded : BounceState::kRefused);
    return std::nullopt;
  }

  // Sends one piece and says what became of it.
  BounceState Send(uint64_t key, uint64_t address, ByteView bytes) {
    const auto slot = writer_->FreeBounce();
    EXPECT_TRUE(slot.has_value());
    writer_->PushBounce(*slot, key, address, bytes.data(), bytes.size());
    EXPECT_EQ(writer_->TakeBounce(*slot), BounceState::kFull);
    EXPECT_FALSE(Take().has_value());
    return writer_->TakeBounce(*slot);
  }

  std::shared_ptr<Mailbox> mailbox_;
  std::unique_ptr<RegionTable> regions_;
  std::unique_ptr<LaneWriter> writer_;
  std::optional<LaneReader> reader_;
};

TEST_F(Bounce, PiecesLandBeforeTheirImmediateWhileBothSidesRun) {
  constexpr uint32_t kPieces = 2000;
  constexpr uint64_t kBytes = 512;
  std::vector<std::byte> target(kBytes);
  const MemoryRegion region = regions_->Add(target.data(), kBytes, Access::kRemoteWrite).value();
  std::thread sender([&] {
    std::vector<std::byte> source(kBytes);
    for (uint32_t piece = 0; piece < kPieces; ++piece) {
      std::fill(source.begin(), source.end(), std::byte(piece % 251));
      std::optional<uint32_t> slot;
      while (!(slot = writer_->FreeBounce())) std::this_thread::yield();
      writer_->PushBounce(*slot, region.remote_key, region.remote_address, source.data(), kBytes);
      BounceState state;
      while ((state = writer_->TakeBounce(*slot)) == BounceState::kFull) std::this_thread::yield();
      ASSERT_EQ(state, BounceState::kLanded);
      while (!writer_->HasImmediateRoom()) std::this_thread::yield();
      writer_->PushImmediate(piece);
    }
  });
  for (uint32_t next = 0; next < kPieces;) {
    const auto immediate = Take();
    if (!immediate) {
      std::this_thread::yield();
      continue;
    }
    EXPECT_EQ(*immediate, next);
    ++next;
    // The next piece may be on its way into the slot, but lands only in Take.
    const auto expected = std::byte((next - 1) % 251);
    EXPECT_TRUE(target.front() == expected || target.front() == std::byte(next % 251));
    EXPECT_EQ(target.front(), target.back());
  }
  sender.join();
}

TEST_F(Bounce, BothSlotsCanBeOnTheWay) {
  std::vector<std::byte> target(8);
  const MemoryRegion region = regions_->Add(target.data(), target.size(), Access::kRemoteWrite).value();
  for (uint32_t slot = 0; slot < kBounceSlots; ++slot) {
    ASSERT_EQ(writer_->FreeBounce(), slot);
    const std::byte value{static_cast<uint8_t>(slot + 1)};
    writer_->PushBounce(slot, region.remote_key, region.remote_address + slot, &value, 1);
  }
  EXPECT_EQ(writer_->FreeBounce(), std::nullopt);
  for (uint32_t slot = 0; slot < kBounceSlots; ++slot) Take();
  EXPECT_EQ(target[0], std::byte{1});
  EXPECT_EQ(target[1], std::byte{2});
  // Free for the sender only once it has taken the result.
  EXPECT_EQ(writer_->FreeBounce(), std::nullopt);
  EXPECT_EQ(writer_->TakeBounce(1), BounceState::kLanded);
  EXPECT_EQ(writer_->FreeBounce(), 1u);
}

TEST_F(Bounce, OnlyWhatThePeerMayWriteIsWritten) {
  std::vector<std::byte> memory(256, std::byte{9});
  const std::vector<std::byte> poison(64, std::byte{0xee});
  const MemoryRegion open = regions_->Add(memory.data() + 64, 128, Access::kRemoteWrite).value();
  const MemoryRegion closed = regions_->Add(memory.data(), memory.size(), Access::kLocalOnly).value();
  const uint64_t at = open.remote_address;
  EXPECT_EQ(Send(closed.remote_key, closed.remote_address, poison), BounceState::kRefused);
  EXPECT_EQ(Send(0, at, poison), BounceState::kRefused);
  EXPECT_EQ(Send(open.remote_key ^ uint64_t{1} << 40, at, poison), BounceState::kRefused);
  EXPECT_EQ(Send(open.remote_key | 0xfffff, at, poison), BounceState::kRefused);
  EXPECT_EQ(Send(open.remote_key, at - 1, poison), BounceState::kRefused);
  EXPECT_EQ(Send(open.remote_key, at + 65, poison), BounceState::kRefused);
  EXPECT_EQ(Send(open.remote_key, ~uint64_t{0} - 3, poison), BounceState::kRefused);
  // A peer can write to the table in the mailbox; what it says there does not count.
  mailbox_->region(KeyIndex(closed.remote_key)).remote_write.store(1);
  mailbox_->region(KeyIndex(open.remote_key)).address.store(closed.remote_address);
  EXPECT_EQ(Send(closed.remote_key, closed.remote_address, poison), BounceState::kRefused);
  EXPECT_EQ(Send(open.remote_key, closed.remote_address, poison), BounceState::kRefused);
  mailbox_->region(KeyIndex(open.remote_key)).address.store(at);
  EXPECT_EQ(memory, std::vector<std::byte>(256, std::byte{9}));

  EXPECT_EQ(Send(open.remote_key, at + 64, poison), BounceState::kLanded);
  EXPECT_EQ(memory[127], std::byte{9});
  EXPECT_EQ(memory[128], std::byte{0xee});
  ASSERT_TRUE(regions_->Remove(open).has_value());
  EXPECT_EQ(Send(open.remote_key, at, poison), BounceState::kRefused);
  EXPECT_EQ(memory[64], std::byte{9});
}

TEST_F(Bounce, NonsenseBreaksTheLane) {
  writer_->PushImmediate(kBounceSlots, kBounceCount);
  Take();
  EXPECT_TRUE(reader_->broken());
  // A slot that nobody has filled.
  reader_ = LaneReader::Open(*mailbox_, 0);
  writer_->PushImmediate(0, kBounceCount);
  Take();
  EXPECT_TRUE(reader_->broken());
}

TEST_F(Bounce, WhoeverTakesTheLaneOverFindsItsSlotsFree) {
  std::vector<std::byte> target(8);
  const MemoryRegion region = regions_->Add(target.data(), target.size(), Access::kRemoteWrite).value();
  const std::byte value{1};
  writer_->PushBounce(0, region.remote_key, region.remote_address, &value, 1);
  writer_.reset();  // without having taken the result
  Take();
  reader_->Free();
  writer_ = LaneWriter::Claim(mailbox_, ThisProcess(), 79).value();
  EXPECT_EQ(writer_->FreeBounce(), 0u);
}

}  // namespace
}  // namespace jax_fabric::local
