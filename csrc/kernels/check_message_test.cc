#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "csrc/kernels/check_message_fuzz.h"
#include "csrc/kernels/cpu/kernels_testing.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "gtest/gtest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace jax_fabric::kernels::testing {
namespace {

constexpr int32_t kHere = 1;
constexpr int32_t kSource = 2;

// A dispatch with a message from rank 2 to rank 1 that has several rows, one with several entries.
class CheckMessageTest : public ::testing::Test {
 protected:
  CheckMessageTest()
      : world_({.ranks = 3,
                .experts = 8,
                .max_tokens = 8,
                .top_k = 4,
                .hidden = 5,
                .odd_ids = false,
                .full_batches = true},
               1),
        layout_(world_.rank(kHere).layout) {
    world_.Dispatch();
    slot_ = static_cast<char*>(world_.Slot(kHere, kSource));
    header_ = reinterpret_cast<MessageHeader*>(slot_);
    counts_ = reinterpret_cast<uint32_t*>(slot_ + layout_.CountsOffset());
    meta_ = reinterpret_cast<RowMeta*>(slot_ + layout_.RowMetaOffset());
    entries_ = reinterpret_cast<Entry*>(slot_ + layout_.EntriesOffset(header_->rows));
    stamp_ = world_.Stamp(kSource);
  }

  std::string Check(ExchangeKind kind = ExchangeKind::kDispatch, int64_t expected_rows = -1) {
    const char* error = CheckMessage(layout_, slot_, kind, stamp_, kSource, {.rows = expected_rows});
    return error == nullptr ? "" : error;
  }

  // Sets a value, checks, and puts the old one back.
  template <typename T, typename V>
  std::string With(T& place, V value) {
    const T before = std::exchange(place, static_cast<T>(value));
    const std::string error = Check();
    place = before;
    EXPECT_EQ(Check(), "");
    return error;
  }

  World world_;
  SlotLayout layout_;
  char* slot_;
  MessageHeader* header_;
  uint32_t* counts_;
  RowMeta* meta_;
  Entry* entries_;
  MessageStamp stamp_;
};

TEST_F(CheckMessageTest, AcceptsWhatTheKernelsWrite) {
  EXPECT_EQ(Check(), "");
  ASSERT_GE(header_->rows, 3u);
  ASSERT_GT(header_->expert_rows, header_->rows);
  EXPECT_EQ(Check(ExchangeKind::kDispatch, header_->rows), "");
}

TEST_F(CheckMessageTest, Stamp) {
  EXPECT_EQ(With(header_->magic, 0), "no message (bad magic)");
  EXPECT_EQ(With(header_->version, 1), "another version of the message format");
  EXPECT_EQ(With(header_->kind, 2), "the peer makes another kind of call");
  EXPECT_EQ(With(header_->sequence, stamp_.sequence + 2), "message of another exchange (bad sequence)");
  EXPECT_EQ(With(header_->signature, 5), "the peer's call has another signature");
  EXPECT_EQ(With(header_->channel, 4), "message of another channel");
  EXPECT_EQ(With(header_->membership_epoch, 8), "message of another membership epoch");
  EXPECT_EQ(With(header_->incarnation, 5), "message of another incarnation of the peer");
  stamp_.incarnation = 0;
  EXPECT_EQ(With(header_->incarnation, 5), "");
  EXPECT_EQ(CheckMessage(layout_, slot_, ExchangeKind::kDispatch, stamp_, 3), std::string("no such source"));
  EXPECT_EQ(CheckMessage(layout_, slot_, ExchangeKind::kDispatch, stamp_, -1), std::string("no such source"));
}

TEST_F(CheckMessageTest, Counts) {
  EXPECT_EQ(With(header_->rows, 9), "more rows than a message has room for");
  EXPECT_EQ(With(header_->rows, 0xffffffff), "more rows than a message has room for");
  EXPECT_EQ(With(header_->rows, header_->rows - 1), "the row count disagrees with the header");
  EXPECT_EQ(With(header_->expert_rows, header_->expert_rows + 1), "the entry count disagrees with the header");
  EXPECT_EQ(With(counts_[0], 9), "more rows for a rank than max_tokens");
  EXPECT_EQ(With(counts_[3], 0xffffffff), "more entries for a rank than possible");
  EXPECT_EQ(With(counts_[3], 0), "fewer entries for a rank than rows");
  EXPECT_EQ(Check(ExchangeKind::kDispatch, header_->rows + 1), "not the rows that the dispatch before calls for");
}

TEST_F(CheckMessageTest, RowsOfEachExpert) {
  auto* local_rows = reinterpret_cast<uint32_t*>(slot_ + layout_.LocalRowsOffset());
  ASSERT_EQ(layout_.shape.experts_per_rank, 3);
  std::vector<uint32_t> counted(3);
  for (uint32_t i = 0; i < header_->expert_rows; ++i) ++counted[entries_[i].local_expert];
  EXPECT_EQ(std::vector<uint32_t>(local_rows, local_rows + 3), counted);
  ASSERT_GT(local_rows[0], 0u);
  EXPECT_EQ(With(local_rows[0], local_rows[0] - 1), "the rows of the experts do not add up");
  EXPECT_EQ(With(local_rows[0], counts_[kHere] + 1), "more rows for an expert than for its rank");
  EXPECT_EQ(With(local_rows[1], 0xffffffff), "more rows for an expert than for its rank");
}

// How the rows are split into rounds. Here there are at most two, the first of five rows.
TEST(CheckRoundsTest, FirstMessage) {
  World world({.ranks = 3,
               .experts = 8,
               .max_tokens = 8,
               .top_k = 4,
               .hidden = 5,
               .private_tokens = 5,
               .routing = Routing::kOneRank,
               .odd_ids = false,
               .full_batches = true},
              1);
  world.SendDispatch(0);
  const SlotLayout& layout = world.rank(0).layout;
  auto* slot = static_cast<char*>(world.Slot(0, kSource));
  auto* header = reinterpret_cast<MessageHeader*>(slot);
  auto* rows = reinterpret_cast<uint32_t*>(slot + layout.RoundRowsOffset());
  ASSERT_EQ(rows[0], 5u);
  ASSERT_EQ(rows[1], 3u);
  const auto check = [&] {
    const char* error =
        CheckMessage(layout, slot, ExchangeKind::kDispatch, world.Stamp(kSource), kSource, ExpectedRows{});
    return std::string(error == nullptr ? "" : error);
  };
  const auto with = [&](uint32_t& place, uint32_t value) {
    const uint32_t before = std::exchange(place, value);
    const std::string error = check();
    place = before;
    return error;
  };
  EXPECT_EQ(check(), "");
  EXPECT_EQ(with(header->rows, 6), "more rows than a message has room for");
  EXPECT_EQ(with(header->rows, 4), "the row count disagrees with the header");
  EXPECT_EQ(with(header->rounds, 0), "more rounds than possible, or none");
  EXPECT_EQ(with(header->rounds, 3), "more rounds than possible, or none");
  EXPECT_EQ(with(header->rounds, 1), "rows after the last round");
  EXPECT_EQ(with(header->first_row, 1), "rows before those of the first round");
  EXPECT_EQ(with(rows[0], 6), "more rows in a round than private_tokens");
  EXPECT_EQ(with(rows[1], 0xffffffff), "more rows in a round than private_tokens");
  EXPECT_EQ(with(rows[1], 4), "the rows of the rounds do not add up");
}

// What is known of the later messages.
TEST(CheckRoundsTest, LaterMessages) {
  World world({.ranks = 2, .experts = 2, .max_tokens = 8, .hidden = 5, .private_tokens = 5, .full_batches = true}, 1);
  world.Dispatch();
  world.SendDispatch(1);
  const SlotLayout& layout = world.rank(0).layout;
  auto* header = static_cast<MessageHeader*>(world.Slot(0, 1));
  const uint32_t rows = header->rows;
  const auto check = [&](const ExpectedRows& expected) {
    const char* error = CheckMessage(layout, header, ExchangeKind::kDispatch, world.Stamp(1), 1, expected);
    return std::string(error == nullptr ? "" : error);
  };
  EXPECT_EQ(check({.round = 1}), "");
  EXPECT_EQ(check({.round = 1, .rows = rows, .first_row = header->first_row}), "");
  const std::string other_rows = "not the rows that the dispatch before calls for";
  EXPECT_EQ(check({.round = 1, .rows = rows + 1, .first_row = header->first_row}), other_rows);
  EXPECT_EQ(check({.round = 0}), "more rounds than possible, or none");
  header->rows = 2;
  EXPECT_EQ(check({.round = 1, .rows = 2, .first_row = header->first_row + 1}), other_rows);
  header->first_row = 6;
  EXPECT_EQ(check({.round = 1}), "");
  header->first_row = 7;
  EXPECT_EQ(check({.round = 1}), "rows past max_tokens");
  header->first_row = 0xffffffff;
  EXPECT_EQ(check({.round = 1}), "rows past max_tokens");
  header->first_row = 0;
  header->rounds = 1;
  EXPECT_EQ(check({.round = 1}), "entries in a message that has none");
  header->rounds = 0;
  header->rows = 6;
  EXPECT_EQ(check({.round = 1}), "more rows than a message has room for");
}

TEST_F(CheckMessageTest, Rows) {
  const std::string offset_error = "the rows begin where they may not (bad payload offset)";
  EXPECT_EQ(With(header_->payload_offset, header_->payload_offset + 256), offset_error);
  EXPECT_EQ(With(header_->payload_offset, -256), offset_error);
  EXPECT_EQ(With(meta_[0].token, 8), "a row's token is not below max_tokens");
  EXPECT_EQ(With(meta_[1].token, meta_[0].token), "the tokens of the rows do not rise");
  EXPECT_EQ(With(meta_[0].entry_begin, 1), "the entries of a row begin where they may not");
  EXPECT_EQ(With(meta_[1].entry_begin, 0), "a row without entries");
  EXPECT_EQ(With(meta_[1].entry_begin, 0xffffffff), "the entries of a row end past the last one");
  EXPECT_EQ(With(meta_[1].entry_begin, header_->expert_rows), "a row with more entries than possible");
}

TEST_F(CheckMessageTest, Entries) {
  EXPECT_EQ(With(entries_[0].local_expert, 3), "an entry names an expert that does not live here");
  EXPECT_EQ(With(entries_[0].local_expert, 0xffffffff), "an entry names an expert that does not live here");
  for (uint32_t j = 0; j + 1 < header_->rows; ++j) {
    if (meta_[j + 1].entry_begin - meta_[j].entry_begin < 2) continue;
    Entry* entries = entries_ + meta_[j].entry_begin;
    EXPECT_EQ(With(entries[1].local_expert, entries[0].local_expert), "the experts of a row do not rise");
  }
}

// 8 experts on 3 ranks: rank 2 has only two of the three.
TEST_F(CheckMessageTest, ExpertsOfTheLastRank) {
  const SlotLayout& layout = world_.rank(2).layout;
  auto* slot = static_cast<char*>(world_.Slot(2, kSource));
  auto* header = reinterpret_cast<MessageHeader*>(slot);
  ASSERT_GT(header->rows, 0u);
  ASSERT_EQ(CheckMessage(layout, slot, ExchangeKind::kDispatch, stamp_, kSource), nullptr);
  auto* entries = reinterpret_cast<Entry*>(slot + layout.EntriesOffset(header->rows));
  entries[0].local_expert = 2;
  EXPECT_EQ(CheckMessage(layout, slot, ExchangeKind::kDispatch, stamp_, kSource),
            std::string("an entry names an expert that does not live here"));
}

TEST_F(CheckMessageTest, OtherKinds) {
  header_->kind = static_cast<uint16_t>(ExchangeKind::kCombine);
  EXPECT_EQ(Check(ExchangeKind::kCombine), "entries in a message that has none");
  header_->expert_rows = 0;
  header_->rounds = 0;
  header_->payload_offset = 256;
  EXPECT_EQ(Check(ExchangeKind::kCombine), "");
  header_->kind = static_cast<uint16_t>(ExchangeKind::kDispatchBack);
  EXPECT_EQ(Check(ExchangeKind::kDispatchBack), "the rows begin where they may not (bad payload offset)");
  header_->payload_offset += layout_.ScalarsBytes(header_->rows);
  EXPECT_EQ(Check(ExchangeKind::kDispatchBack), "");
}

// Random inputs of the fuzz target: valid messages with none to a few bytes changed.
TEST(CheckMessageFuzzTest, SeededMutations) {
  std::mt19937_64 random(1);
  constexpr int kRuns = 100'000;
  int accepted = 0;
  std::vector<uint8_t> input;
  for (int run = 0; run < kRuns; ++run) {
    input.resize(random() % 400);
    for (uint8_t& byte : input) byte = static_cast<uint8_t>(random());
    accepted += FuzzCheckMessage(input.data(), input.size()) ? 1 : 0;
  }
  // Both ways are taken often.
  EXPECT_GT(accepted, kRuns / 10);
  EXPECT_LT(accepted, kRuns * 9 / 10);
  LLVMFuzzerTestOneInput(input.data(), input.size());
  LLVMFuzzerTestOneInput(nullptr, 0);
}

}  // namespace
}  // namespace jax_fabric::kernels::testing
