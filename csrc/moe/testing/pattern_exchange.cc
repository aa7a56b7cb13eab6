#include "csrc/moe/testing/pattern_exchange.h"

#include <cstring>

namespace jax_fabric::moe::testing {
namespace {

constexpr int kReadPoison = 0xa5;

uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

uint64_t PatternExchange::Word(int32_t round, int32_t source, int32_t target, int64_t index) const {
  const uint64_t of_round = call_.pattern * 0x9e3779b97f4a7c15ull + round * 0xd1342543de82ef95ull;
  return Mix(of_round + source * 1'000'003 + target * 10'007 + index);
}

int64_t PatternExchange::Rows(int32_t round, int32_t source, int32_t target) const {
  if (call_.rows >= 0) return call_.rows;
  return Word(round, source, target, -1) % (layout_.shape.MessageRows() + 1);
}

int64_t PatternExchange::PayloadOffset(int64_t rows) const {
  const bool scalars = call_.kind == kernels::ExchangeKind::kDispatchBack;
  return layout_.PlainPayloadOffset() + (scalars ? layout_.ScalarsBytes(rows) : 0);
}

void PatternExchange::Pack(int32_t round, const kernels::MessageStamp& stamp, void* const* slots,
                           int64_t* message_bytes) {
  ++packs_;
  const int32_t me = layout_.shape.rank;
  for (int32_t target = 0; target < layout_.shape.ranks; ++target) {
    const int64_t rows = Rows(round, me, target);
    kernels::MessageHeader header;
    header.magic = kernels::kMessageMagic;
    header.version = kernels::kMessageVersion;
    header.kind = static_cast<uint16_t>(call_.kind);
    header.incarnation = stamp.incarnation;
    header.signature = stamp.signature;
    header.sequence = stamp.sequence;
    header.channel = stamp.channel;
    header.rows = static_cast<uint32_t>(rows);
    header.payload_offset = PayloadOffset(rows);
    auto* slot = static_cast<std::byte*>(slots[target]);
    std::memcpy(slot, &header, sizeof header);
    auto* words = reinterpret_cast<uint64_t*>(slot + header.payload_offset);
    const int64_t count = rows * layout_.CombineRowBytes() / 8;
    for (int64_t i = 0; i < count; ++i) words[i] = Word(round, me, target, i);
    message_bytes[target] = header.payload_offset + count * 8;
  }
}

kernels::ExpectedRows PatternExchange::RowsOf(int32_t round, int32_t source) const {
  return {.round = round, .rows = call_.check_rows ? Rows(round, source, layout_.shape.rank) : -1};
}

Status PatternExchange::Unpack(int32_t round, const void* const* slots) {
  ++unpacks_;
  const int32_t me = layout_.shape.rank;
  for (int32_t source = 0; source < layout_.shape.ranks; ++source) {
    auto* slot = static_cast<std::byte*>(const_cast<void*>(slots[source]));
    const int64_t rows = Rows(round, source, me);
    const int64_t offset = PayloadOffset(rows);
    const auto* words = reinterpret_cast<const uint64_t*>(slot + offset);
    const int64_t count = rows * layout_.CombineRowBytes() / 8;
    for (int64_t i = 0; i < count && damage_.empty(); ++i) {
      if (words[i] == Word(round, source, me, i)) continue;
      damage_ = fmt::format("call {} round {} at rank {} from rank {}: word {} of {} is {:#x}", sequence(), round, me,
                            source, i, count, words[i]);
    }
    std::memset(slot, kReadPoison, offset + count * 8);
  }
  return {};
}

void PatternExchange::Finish(const Error* error) {
  if (error != nullptr) error_ = *error;
  finishes_.fetch_add(1, std::memory_order_release);
}

}  // namespace jax_fabric::moe::testing
