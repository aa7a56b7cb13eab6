#include "csrc/kernels/cpu/kernels_testing.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/cpu/float8_reference.h"
#include "csrc/kernels/float_types.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "gtest/gtest.h"

namespace jax_fabric::kernels::testing {
namespace {

constexpr int64_t kGuardBytes = 256;

template <typename Codec>
float DecodeAs(const void* element) {
  typename Codec::Storage stored;
  std::memcpy(&stored, element, sizeof(stored));
  return Codec::Decode(stored);
}

template <typename Codec>
void EncodeAs(void* element, float value) {
  const typename Codec::Storage stored = Codec::Encode(value);
  std::memcpy(element, &stored, sizeof(stored));
}

bool AllEqual(uint8_t byte, const uint8_t* begin, const uint8_t* end) {
  // The first byte is, and each is like the one before.
  return begin == end || (*begin == byte && std::memcmp(begin, begin + 1, end - begin - 1) == 0);
}

}  // namespace

float Decode(ElementType type, const void* element) {
  switch (type) {
    case ElementType::kFloat32:
      return DecodeAs<Float32Codec>(element);
    case ElementType::kBfloat16:
      return DecodeAs<Bfloat16Codec>(element);
    case ElementType::kFloat16:
      return DecodeAs<Float16Codec>(element);
    case ElementType::kFloat8E4m3fn:
      return DecodeAs<Float8E4m3fnCodec>(element);
  }
  return 0;
}

void Encode(ElementType type, void* element, float value) {
  switch (type) {
    case ElementType::kFloat32:
      return EncodeAs<Float32Codec>(element, value);
    case ElementType::kBfloat16:
      return EncodeAs<Bfloat16Codec>(element, value);
    case ElementType::kFloat16:
      return EncodeAs<Float16Codec>(element, value);
    case ElementType::kFloat8E4m3fn:
      return EncodeAs<Float8E4m3fnCodec>(element, value);
  }
}

float RoundTo(ElementType type, float value) {
  uint32_t stored = 0;
  Encode(type, &stored, value);
  return Decode(type, &stored);
}

uint32_t Array::Bits(int64_t i) const {
  uint32_t bits = 0;
  std::memcpy(&bits, bytes_.data() + i * ElementBytes(type_), ElementBytes(type_));
  return bits;
}

bool Array::FilledWith(uint8_t byte, int64_t begin, int64_t end) const {
  const uint8_t* bytes = bytes_.data();
  return AllEqual(byte, bytes + begin * ElementBytes(type_), bytes + end * ElementBytes(type_));
}

std::string WorldConfig::Describe() const {
  std::string text;
  const auto add = [&](const char* name, int64_t value) { text += std::string(name) + std::to_string(value) + " "; };
  add("N", ranks), add("E", experts), add("T", max_tokens), add("K", top_k), add("H", hidden), add("C", capacity);
  add("P", private_tokens);
  add("routing", static_cast<int>(routing)), add("cache", cache_bytes), add("x", static_cast<int>(x_type));
  add("dispatch", static_cast<int>(dispatch_type)), add("tokens", static_cast<int>(tokens_type));
  add("y", static_cast<int>(y_type)), add("combine", static_cast<int>(combine_type));
  add("out", static_cast<int>(out_type)), add("redispatch", static_cast<int>(redispatch_type));
  add("quantised", quantised);
  for (size_t r = 0; r < absent.size(); ++r) {
    if (absent[r] != 0) add("absent", static_cast<int64_t>(r));
  }
  return text;
}

int64_t RankState::routed_rows() const {
  int64_t total = 0;
  for (int32_t size : group_sizes) total += size;
  return total;
}

int64_t RankState::rows_from(int64_t source) const {
  int64_t total = 0;
  for (int64_t round = 0; round < layout.shape.MaxRounds(); ++round) {
    total += std::max(0, rows[source * layout.shape.MaxRounds() + round]);
  }
  return total;
}

QuantisedRows Quantised(const RankState& state) {
  const int64_t hidden = state.layout.shape.hidden;
  QuantisedRows rows;
  if (state.x.type() == ElementType::kFloat8E4m3fn) {
    for (int64_t i = 0; i < state.x.size(); ++i) rows.bits.push_back(state.x.Bits(i));
    rows.scales = state.x_scales;
    return rows;
  }
  for (int64_t row = 0; row < state.t_rows; ++row) {
    for (int64_t begin = 0; begin < hidden; begin += 128) {
      const int64_t first = row * hidden + begin;
      const int64_t end = row * hidden + std::min(begin + 128, hidden);
      float largest = 1e-4f;
      for (int64_t i = first; i < end; ++i) {
        const float magnitude = std::abs(state.x.Get(i));
        if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
      }
      const float inverse = 448.0f / largest;
      rows.scales.push_back(largest * (1.0f / 448.0f));
      for (int64_t i = first; i < end; ++i) {
        const float scaled = state.x.Get(i) * inverse;
        rows.bits.push_back(NearestFloat8(scaled));
      }
    }
  }
  return rows;
}

World::World(const WorldConfig& config, uint64_t seed)
    : config_(config), random_(seed), states_(config.ranks), message_bytes_(config.ranks) {
  MoeShape shape;
  shape.ranks = config.ranks;
  shape.experts = config.experts;
  shape.experts_per_rank = (config.experts + config.ranks - 1) / config.ranks;
  shape.max_tokens = config.max_tokens;
  shape.top_k = config.top_k;
  shape.hidden = config.hidden;
  shape.private_tokens = config.private_tokens;
  shape.capacity = config.capacity >= 0 ? config.capacity
                                        : static_cast<int64_t>(config.ranks) * config.max_tokens * shape.LocalTopK();
  config_.capacity = shape.capacity;
  for (int32_t r = 0; r < config.ranks; ++r) {
    shape.rank = r;
    states_[r].layout =
        SlotLayout{shape, config.dispatch_type, config.combine_type, config.redispatch_type, config.quantised};
    MakeInputs(states_[r]);
  }
  slot_bytes_ = states_[0].layout.SlotBytes();
  const int64_t bytes = config.ranks * config.ranks * (slot_bytes_ + kGuardBytes) + kGuardBytes;
  memory_.reset(new uint8_t[bytes + 256]);
  slots_ = memory_.get() + 256 - reinterpret_cast<uintptr_t>(memory_.get()) % 256;
  PoisonSlots();
}

Array World::RandomArray(ElementType type, int64_t size) {
  Array array(type, size);
  for (int64_t i = 0; i < size; ++i) array.Set(i, RandomFloat());
  return array;
}

int32_t World::DrawExpert(int64_t row, int64_t rows) {
  const int32_t experts = config_.experts;
  const int32_t uniform = static_cast<int32_t>(random_() % experts);
  if (config_.odd_ids && random_() % 8 == 0) {
    constexpr int32_t kLimit = std::numeric_limits<int32_t>::max();
    const int32_t ids[] = {-1, experts, -experts, experts + 1, kLimit, -kLimit - 1};
    return ids[random_() % std::size(ids)];
  }
  switch (config_.routing) {
    case Routing::kUniform:
      return uniform;
    case Routing::kFirstExpert:
      return 0;
    case Routing::kLastExpert:
      return experts - 1;
    case Routing::kOneRank:
      return uniform % ((experts + config_.ranks - 1) / config_.ranks);
    case Routing::kZipf: {
      const double u = std::uniform_real_distribution<double>(1e-3, 1)(random_);
      return static_cast<int32_t>(std::min<double>(std::pow(u, -1 / 1.2) - 1, experts - 1));
    }
    case Routing::kNone:
      return -1;
    case Routing::kLastRowOnly:
      return row + 1 == rows ? uniform : -1;
  }
  return -1;
}

void World::MakeInputs(RankState& state) {
  const MoeShape& shape = state.layout.shape;
  const int64_t t_choices[] = {0, shape.max_tokens, static_cast<int64_t>(random_() % (shape.max_tokens + 1))};
  state.t_rows = static_cast<int32_t>(config_.full_batches ? shape.max_tokens : t_choices[random_() % 3]);
  if (config_.IsAbsent(shape.rank)) state.t_rows = 0;
  const int64_t t_rows = state.t_rows;
  state.x = RandomArray(config_.x_type, t_rows * shape.hidden);
  for (int64_t i = 0; config_.odd_values && i < state.x.size(); ++i) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float values[] = {kInfinity, -kInfinity, std::nanf("")};
    if (random_() % 100 == 0) state.x.Set(i, values[random_() % std::size(values)]);
  }
  state.x_scales.resize(config_.quantised ? t_rows * state.layout.ScalesOfRow() : 0);
  for (float& scale : state.x_scales) scale = std::exp(RandomFloat());
  state.experts.resize(t_rows * shape.top_k);
  state.weights.resize(t_rows * shape.top_k);
  for (int64_t t = 0; t < t_rows; ++t) {
    bool routed = false;
    for (int64_t k = 0; k < shape.top_k; ++k) {
      const int32_t expert = DrawExpert(t, t_rows);
      state.experts[t * shape.top_k + k] = expert;
      const bool valid = expert >= 0 && expert < shape.experts && !config_.IsAbsent(expert / shape.experts_per_rank);
      routed |= valid;
      // A choice that goes nowhere must have no effect, whatever its weight.
      state.weights[t * shape.top_k + k] = valid ? RandomFloat() : std::numeric_limits<float>::quiet_NaN();
    }
    if (routed) continue;
    for (int64_t h = 0; h < shape.hidden; ++h) state.x.Set(t * shape.hidden + h, std::nanf(""));
  }
  constexpr int32_t kPoisonInt = std::numeric_limits<int32_t>::min();
  state.index.assign(t_rows * shape.ranks, kPoisonInt);
  state.slot.assign(t_rows * shape.top_k, kPoisonInt);
  state.tokens = Array(config_.tokens_type, shape.capacity * shape.hidden);
  state.scales.assign(config_.quantised ? shape.capacity * state.layout.ScalesOfRow() : 0, std::nanf(""));
  state.row_weights.assign(shape.capacity, std::nanf(""));
  state.group_sizes.assign(shape.experts_per_rank, kPoisonInt);
  state.positions.assign(static_cast<int64_t>(shape.ranks) * shape.max_tokens * shape.LocalTopK(), kPoisonInt);
  state.token_ends.assign(shape.MaxRounds(), kPoisonInt);
  state.rows.assign(shape.ranks * shape.MaxRounds(), kPoisonInt);
}

void* World::Slot(int64_t rank, int64_t source) {
  return slots_ + kGuardBytes + (rank * config_.ranks + source) * (slot_bytes_ + kGuardBytes);
}

MessageStamp World::Stamp(int64_t source) const {
  MessageStamp stamp;
  stamp.incarnation = 1000 + source;
  stamp.signature = 0x123456789abcdef0u;
  stamp.sequence = sequence_;
  stamp.channel = 3;
  stamp.membership_epoch = 7;
  return stamp;
}

void World::PoisonSlots() {
  ++sequence_;
  std::memset(slots_, slot_poison_, config_.ranks * config_.ranks * (slot_bytes_ + kGuardBytes) + kGuardBytes);
}

std::vector<void*> World::SlotsFrom(int64_t source) {
  std::vector<void*> slots;
  for (int64_t r = 0; r < ranks(); ++r) slots.push_back(Slot(r, source));
  return slots;
}

std::vector<const void*> World::SlotsAt(int64_t rank) {
  std::vector<const void*> slots;
  for (int64_t s = 0; s < ranks(); ++s) slots.push_back(Slot(rank, s));
  return slots;
}

std::vector<uint8_t> World::Message(int64_t rank, int64_t source) {
  const auto* slot = static_cast<const uint8_t*>(Slot(rank, source));
  return std::vector<uint8_t>(slot, slot + message_bytes_[source][rank]);
}

int32_t World::rounds() {
  const int32_t rounds = RoundsOf(rank(0).layout.shape, rank(0).receive_route());
  for (int64_t r = 1; r < ranks(); ++r) {
    EXPECT_EQ(RoundsOf(rank(r).layout.shape, rank(r).receive_route()), rounds) << "rank " << r;
  }
  return rounds;
}

void World::CheckSent(int64_t source, ExchangeKind kind, int32_t round, const std::vector<int64_t>& message_bytes) {
  message_bytes_[source] = message_bytes;
  for (int64_t r = 0; r < ranks(); ++r) {
    const auto* slot = static_cast<const uint8_t*>(Slot(r, source));
    const char* error =
        CheckMessage(rank(r).layout, slot, kind, Stamp(source), static_cast<int32_t>(source), {.round = round});
    EXPECT_EQ(error, nullptr) << error;
    ASSERT_GE(message_bytes[r], static_cast<int64_t>(sizeof(MessageHeader)));
    ASSERT_LE(message_bytes[r], slot_bytes_);
    EXPECT_TRUE(AllEqual(slot_poison_, slot - kGuardBytes, slot)) << "written before the slot";
    EXPECT_TRUE(AllEqual(slot_poison_, slot + message_bytes[r], slot + slot_bytes_ + kGuardBytes))
        << "written behind the message";
  }
}

template <typename Args, typename ArgsOf>
void World::SendFromAll(ExchangeKind kind, int32_t round, void (*kernel)(const Args&), ArgsOf args_of) {
  for (int64_t s = 0; s < ranks(); ++s) {
    const std::vector<void*> slots = SlotsFrom(s);
    std::vector<int64_t> message_bytes(ranks(), -1);
    Args args = args_of(rank(s), s);
    args.round = round;
    args.slots = slots.data();
    args.message_bytes = message_bytes.data();
    args.cache_bytes = config_.cache_bytes;
    kernel(args);
    CheckSent(s, kind, round, message_bytes);
  }
}

template <typename Args, typename ArgsOf>
void World::ReceiveAtAll(int32_t round, void (*kernel)(const Args&), ArgsOf args_of) {
  for (int64_t r = 0; r < ranks(); ++r) {
    const std::vector<const void*> slots = SlotsAt(r);
    Args args = args_of(rank(r), r);
    args.round = round;
    args.slots = slots.data();
    args.cache_bytes = config_.cache_bytes;
    kernel(args);
  }
}

void World::Dispatch(bool drop_overflow, bool zero_padding) {
  int32_t all = 1;
  for (int32_t round = 0; round < all; ++round) {
    PoisonSlots();
    SendDispatch(round);
    ReceiveAtAll(round, KernelsUnderTest().dispatch_receive, [&](RankState& state, int64_t) {
      return DispatchReceiveArgs{.layout = state.layout,
                                 .tokens_type = state.tokens.type(),
                                 .tokens = state.tokens.data(),
                                 .scales = state.scales.data(),
                                 .weights = state.row_weights.data(),
                                 .group_sizes = state.group_sizes.data(),
                                 .route = state.receive_route(),
                                 .drop_overflow = drop_overflow,
                                 .zero_padding = zero_padding,
                                 .dropped = &state.dropped};
    });
    all = rounds();
  }
}

void World::SendDispatch(int32_t round) {
  SendFromAll(ExchangeKind::kDispatch, round, KernelsUnderTest().dispatch_send, [&](RankState& state, int64_t s) {
    return DispatchSendArgs{.layout = state.layout,
                            .stamp = Stamp(s),
                            .t_rows = state.t_rows,
                            .x_type = state.x.type(),
                            .x = state.x.data(),
                            .scales = state.x_scales.data(),
                            .experts = state.experts.data(),
                            .weights = state.weights.data(),
                            .absent = config_.absent.empty() ? nullptr : config_.absent.data(),
                            .route = state.send_route()};
  });
}

World::CombineResult World::Combine(const std::vector<Array>& y, bool weighted,
                                    const std::vector<std::vector<float>>* row_scalars) {
  const ExchangeKind kind = row_scalars != nullptr ? ExchangeKind::kDispatchBack : ExchangeKind::kCombine;
  CombineResult result;
  for (const RankState& state : states_) {
    result.out.emplace_back(config_.out_type, int64_t{state.t_rows} * config_.hidden);
    result.scalars.emplace_back(int64_t{state.t_rows} * config_.top_k, std::nanf(""));
  }
  const int32_t all = rounds();
  for (int32_t round = 0; round < all; ++round) {
    PoisonSlots();
    SendFromAll(kind, round, KernelsUnderTest().combine_send, [&](RankState& state, int64_t s) {
      return CombineSendArgs{.layout = state.layout,
                             .stamp = Stamp(s),
                             .kind = kind,
                             .y_type = y[s].type(),
                             .y = y[s].data(),
                             .row_weights = weighted ? state.row_weights.data() : nullptr,
                             .row_scalars = row_scalars != nullptr ? (*row_scalars)[s].data() : nullptr,
                             .route = state.receive_route()};
    });
    ReceiveAtAll(round, KernelsUnderTest().combine_receive, [&](RankState& state, int64_t r) {
      return CombineReceiveArgs{.layout = state.layout,
                                .kind = kind,
                                .t_rows = state.t_rows,
                                .route = state.send_route(),
                                .out_type = config_.out_type,
                                .out = result.out[r].data(),
                                .scalars = row_scalars != nullptr ? result.scalars[r].data() : nullptr};
    });
  }
  return result;
}

World::RedispatchResult World::Redispatch(const std::vector<Array>& x, bool weighted, const std::vector<Array>* y) {
  RedispatchResult result;
  for (int64_t r = 0; r < ranks(); ++r) {
    result.out.emplace_back(config_.out_type, config_.capacity * config_.hidden);
    result.dots.emplace_back(config_.capacity, std::nanf(""));
  }
  const int32_t all = rounds();
  for (int32_t round = 0; round < all; ++round) {
    PoisonSlots();
    SendFromAll(ExchangeKind::kRedispatch, round, KernelsUnderTest().redispatch_send, [&](RankState& state, int64_t s) {
      return RedispatchSendArgs{.layout = state.layout,
                                .stamp = Stamp(s),
                                .t_rows = state.t_rows,
                                .x_type = x[s].type(),
                                .x = x[s].data(),
                                .route = state.send_route()};
    });
    ReceiveAtAll(round, KernelsUnderTest().redispatch_receive, [&](RankState& state, int64_t r) {
      return RedispatchReceiveArgs{.layout = state.layout,
                                   .route = state.receive_route(),
                                   .row_weights = weighted ? state.row_weights.data() : nullptr,
                                   .y_type = y != nullptr ? (*y)[r].type() : ElementType::kFloat32,
                                   .y = y != nullptr ? (*y)[r].data() : nullptr,
                                   .out_type = config_.out_type,
                                   .out = result.out[r].data(),
                                   .dots = y != nullptr ? result.dots[r].data() : nullptr};
    });
  }
  return result;
}

}  // namespace jax_fabric::kernels::testing
