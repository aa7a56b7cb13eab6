#include "csrc/kernels/check_message_fuzz.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels::testing {
namespace {

// Hands out bytes of the input, then zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}
  bool done() const { return data_ == end_; }
  uint8_t Byte() { return done() ? 0 : *data_++; }
  int32_t Between(int32_t low, int32_t high) { return low + Byte() % (high - low + 1); }
  // Mostly near the legal range, sometimes anything.
  int32_t Index() {
    const uint8_t byte = Byte();
    return byte < 0xf0 ? byte % 16 - 2 : static_cast<int32_t>(Word());
  }
  uint32_t Word() {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word = word << 8 | Byte();
    return word;
  }
  std::vector<int32_t> Indices(int64_t size) {
    std::vector<int32_t> indices(size);
    for (int32_t& index : indices) index = Index();
    return indices;
  }

 private:
  const uint8_t* data_;
  const uint8_t* end_;
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// A buffer of exactly that many bytes, aligned as slots are.
using Slot = std::unique_ptr<void, Free>;
Slot MakeSlot(int64_t bytes) {
  Slot slot(std::aligned_alloc(256, bytes));
  std::memset(slot.get(), 0xff, bytes);
  return slot;
}

class Fuzzer {
 public:
  explicit Fuzzer(Input input) : input_(input) {
    MoeShape& shape = layout_.shape;
    shape.ranks = input_.Between(1, 4);
    shape.rank = input_.Between(0, shape.ranks - 1);
    shape.experts = input_.Between(1, 9);
    shape.experts_per_rank = (shape.experts + shape.ranks - 1) / shape.ranks;
    shape.max_tokens = input_.Between(1, 6);
    shape.top_k = input_.Between(1, std::min(shape.experts, 5));
    shape.hidden = input_.Between(1, 9);
    shape.capacity = input_.Between(0, 40);
    shape.private_tokens = input_.Between(1, 7);
    layout_.dispatch_type = Type();
    layout_.combine_type = Type();
    layout_.redispatch_type = Type();
    layout_.quantised = layout_.dispatch_type == ElementType::kFloat8E4m3fn && input_.Between(0, 1) == 1;
    if (input_.Between(0, 3) == 0) shape.hidden += kScaleBlock;
    kind_ = static_cast<ExchangeKind>(input_.Between(1, 4));
    round_ = input_.Between(0, shape.MaxRounds() - 1);
    stamp_.sequence = input_.Byte();
    cache_bytes_ = input_.Between(0, 1) == 0 ? 0 : kAlwaysCached;
    for (int32_t r = 0; r < shape.ranks; ++r) slots_.push_back(MakeSlot(layout_.SlotBytes()));
  }

  bool Run() {
    for (int32_t source = 0; source < layout_.shape.ranks; ++source) Send(source);
    const int32_t t_rows = input_.Between(0, layout_.shape.max_tokens);
    std::vector<int32_t> index = Indices(t_rows, layout_.shape.ranks);
    std::vector<int32_t> slot = Indices(t_rows, layout_.shape.top_k);
    std::vector<int32_t> token_ends = Indices(1, layout_.shape.MaxRounds());
    std::vector<int32_t> positions = Positions();
    std::vector<int32_t> rows = Indices(layout_.shape.ranks, layout_.shape.MaxRounds());
    ChangeBytes();
    for (int32_t source = 0; source < layout_.shape.ranks; ++source) {
      const char* error = CheckMessage(layout_, slots_[source].get(), kind_, stamp_, source, {.round = round_});
      if (error != nullptr) return false;
    }
    const ReceiveRoute receive_route{positions.data(), rows.data()};
    if (kind_ == ExchangeKind::kDispatch) {
      ReceiveDispatch(receive_route);
    } else if (kind_ == ExchangeKind::kRedispatch) {
      ReceiveRedispatch(receive_route);
    } else {
      ReceiveCombine(t_rows, {index.data(), slot.data(), token_ends.data()});
    }
    return true;
  }

 private:
  ElementType Type() { return static_cast<ElementType>(input_.Between(0, 3)); }
  std::vector<int32_t> Indices(int64_t rows, int64_t columns) { return input_.Indices(rows * columns); }
  std::vector<int32_t> Positions() {
    return Indices(int64_t{layout_.shape.ranks} * layout_.shape.max_tokens, layout_.shape.LocalTopK());
  }
  std::vector<const void*> ReceivedSlots() const {
    std::vector<const void*> slots;
    for (const Slot& slot : slots_) slots.push_back(slot.get());
    return slots;
  }

  // Valid messages of a source: to this rank, and to others, which are of no further interest.
  void Send(int32_t source) {
    const MoeShape& shape = layout_.shape;
    std::vector<void*> slots(shape.ranks);
    std::vector<Slot> others;
    for (int32_t r = 0; r < shape.ranks; ++r) {
      if (r != shape.rank) others.push_back(MakeSlot(layout_.SlotBytes()));
      slots[r] = r == shape.rank ? slots_[source].get() : others.back().get();
    }
    std::vector<int64_t> message_bytes(shape.ranks);
    if (kind_ == ExchangeKind::kDispatch || kind_ == ExchangeKind::kRedispatch) {
      SendTokens(slots.data(), message_bytes.data());
    } else {
      SendSums(slots.data(), message_bytes.data());
    }
    for (int64_t bytes : message_bytes) {
      if (bytes < static_cast<int64_t>(sizeof(MessageHeader)) || bytes > layout_.SlotBytes()) std::abort();
    }
  }

  void SendTokens(void* const* slots, int64_t* message_bytes) {
    const MoeShape& shape = layout_.shape;
    const int32_t t_rows = input_.Between(0, shape.max_tokens);
    const std::vector<float> x(int64_t{t_rows} * shape.hidden, 1.5f);
    if (kind_ == ExchangeKind::kRedispatch || round_ > 0) {
      std::vector<int32_t> index = Indices(t_rows, shape.ranks);
      std::vector<int32_t> slot(int64_t{t_rows} * shape.top_k);
      std::vector<int32_t> token_ends = Indices(1, shape.MaxRounds());
      RedispatchSend({.layout = layout_,
                      .stamp = stamp_,
                      .round = round_,
                      .kind = kind_,
                      .t_rows = t_rows,
                      .x = x.data(),
                      .route = {index.data(), slot.data(), token_ends.data()},
                      .slots = slots,
                      .message_bytes = message_bytes,
                      .cache_bytes = cache_bytes_});
      return;
    }
    const std::vector<int32_t> experts = Indices(t_rows, shape.top_k);
    const std::vector<float> weights(experts.size(), 0.5f);
    std::vector<int32_t> index(int64_t{t_rows} * shape.ranks);
    std::vector<int32_t> slot(experts.size());
    std::vector<int32_t> token_ends(shape.MaxRounds());
    DispatchSend({.layout = layout_,
                  .stamp = stamp_,
                  .t_rows = t_rows,
                  .x = x.data(),
                  .experts = experts.data(),
                  .weights = weights.data(),
                  .route = {index.data(), slot.data(), token_ends.data()},
                  .slots = slots,
                  .message_bytes = message_bytes,
                  .cache_bytes = cache_bytes_});
  }

  void SendSums(void* const* slots, int64_t* message_bytes) {
    const MoeShape& shape = layout_.shape;
    std::vector<int32_t> positions = Positions();
    std::vector<int32_t> rows = Indices(shape.ranks, shape.MaxRounds());
    const std::vector<float> y(shape.capacity * shape.hidden, 2.5f);
    const std::vector<float> scalars(shape.capacity, 1.0f);
    CombineSend({.layout = layout_,
                 .stamp = stamp_,
                 .round = round_,
                 .kind = kind_,
                 .y = y.data(),
                 .row_weights = scalars.data(),
                 .row_scalars = scalars.data(),
                 .route = {positions.data(), rows.data()},
                 .slots = slots,
                 .message_bytes = message_bytes,
                 .cache_bytes = cache_bytes_});
  }

  // Few changes, so that some messages stay acceptable.
  void ChangeBytes() {
    for (int changes = input_.Between(0, 3); changes > 0; --changes) {
      void* slot = slots_[input_.Byte() % slots_.size()].get();
      switch (input_.Byte() % 4) {
        case 0: {
          const int64_t high = input_.Byte();
          const int64_t offset = (high << 8 | input_.Byte()) % layout_.SlotBytes();
          static_cast<uint8_t*>(slot)[offset] = input_.Byte();
          break;
        }
        case 1:  // a field of the header, a count, or one of the first rows or entries
          static_cast<uint32_t*>(slot)[input_.Byte() % 64] = input_.Index();
          break;
        case 2:
          ChangeCounts(slot, input_.Index(), static_cast<MessageHeader*>(slot)->expert_rows);
          break;
        case 3:
          ChangeCounts(slot, static_cast<MessageHeader*>(slot)->rows, input_.Index());
          break;
      }
    }
  }

  // Everything that says how much there is, in agreement, so that deeper checks have something to do.
  void ChangeCounts(void* slot, uint32_t rows, uint32_t expert_rows) {
    auto* header = static_cast<MessageHeader*>(slot);
    header->rows = rows;
    header->expert_rows = expert_rows;
    const int64_t scalars = kind_ == ExchangeKind::kDispatchBack ? layout_.ScalarsBytes(rows) : 0;
    header->payload_offset = layout_.PlainPayloadOffset() + scalars;
    if (kind_ != ExchangeKind::kDispatch || round_ > 0) return;
    header->payload_offset = layout_.DispatchPayloadOffset(rows, expert_rows);
    auto* counts = reinterpret_cast<uint32_t*>(static_cast<char*>(slot) + layout_.CountsOffset());
    auto* round_rows = reinterpret_cast<uint32_t*>(static_cast<char*>(slot) + layout_.RoundRowsOffset());
    uint32_t left = rows;
    for (int32_t round = 0; round < layout_.shape.MaxRounds(); ++round) {
      round_rows[round] = std::min<uint32_t>(left, layout_.shape.MessageRows());
      left -= round_rows[round];
    }
    header->rows = round_rows[0];
    header->rounds = layout_.shape.MaxRounds();
    auto* local_rows = reinterpret_cast<uint32_t*>(static_cast<char*>(slot) + layout_.LocalRowsOffset());
    uint32_t entries_left = expert_rows;
    for (int32_t e = 0; e < layout_.shape.experts_per_rank; ++e) {
      local_rows[e] = std::min(entries_left, rows);
      entries_left -= local_rows[e];
    }
    counts[layout_.shape.rank] = rows;
    counts[layout_.shape.ranks + layout_.shape.rank] = expert_rows;
  }

  void ReceiveDispatch(const ReceiveRoute& route) const {
    const MoeShape& shape = layout_.shape;
    const std::vector<const void*> slots = ReceivedSlots();
    // As they came, or in float32.
    const bool raw = layout_.quantised && cache_bytes_ == 0;
    const ElementType type = raw ? layout_.dispatch_type : ElementType::kFloat32;
    std::vector<char> tokens(shape.capacity * shape.hidden * ElementBytes(type));
    std::vector<float> scales(raw ? shape.capacity * layout_.ScalesOfRow() : 0);
    std::vector<float> weights(shape.capacity);
    std::vector<int32_t> group_sizes(shape.experts_per_rank);
    int32_t dropped = -1;
    DispatchReceive({.layout = layout_,
                     .round = round_,
                     .slots = slots.data(),
                     .tokens_type = type,
                     .tokens = tokens.data(),
                     .scales = raw ? scales.data() : nullptr,
                     .weights = weights.data(),
                     .group_sizes = group_sizes.data(),
                     .route = route,
                     .drop_overflow = true,
                     .zero_padding = true,
                     .dropped = &dropped,
                     .cache_bytes = cache_bytes_});
    if (round_ > 0) return;
    int64_t total = 0;
    for (int32_t size : group_sizes) total += size;
    if (total > shape.capacity || dropped < 0) std::abort();
  }

  void ReceiveRedispatch(const ReceiveRoute& route) const {
    const MoeShape& shape = layout_.shape;
    const std::vector<const void*> slots = ReceivedSlots();
    const std::vector<float> weights(shape.capacity, 0.5f);
    const std::vector<float> y(shape.capacity * shape.hidden, 1.0f);
    std::vector<float> out(y.size());
    std::vector<float> dots(shape.capacity);
    RedispatchReceive({.layout = layout_,
                       .round = round_,
                       .slots = slots.data(),
                       .route = route,
                       .row_weights = weights.data(),
                       .y = y.data(),
                       .out = out.data(),
                       .dots = dots.data(),
                       .cache_bytes = cache_bytes_});
  }

  void ReceiveCombine(int32_t t_rows, const SendRoute& route) const {
    const MoeShape& shape = layout_.shape;
    const std::vector<const void*> slots = ReceivedSlots();
    std::vector<float> out(int64_t{t_rows} * shape.hidden);
    std::vector<float> scalars(int64_t{t_rows} * shape.top_k);
    CombineReceive({.layout = layout_,
                    .round = round_,
                    .slots = slots.data(),
                    .t_rows = t_rows,
                    .route = route,
                    .out = out.data(),
                    .scalars = kind_ == ExchangeKind::kDispatchBack ? scalars.data() : nullptr,
                    .cache_bytes = cache_bytes_});
  }

  Input input_;
  SlotLayout layout_;
  ExchangeKind kind_ = ExchangeKind::kDispatch;
  int32_t round_ = 0;
  MessageStamp stamp_;
  int64_t cache_bytes_ = kAlwaysCached;
  std::vector<Slot> slots_;  // [ranks] this rank's slot of each source
};

}  // namespace

bool FuzzCheckMessage(const uint8_t* data, size_t size) { return Fuzzer(Input(data, size)).Run(); }

}  // namespace jax_fabric::kernels::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  jax_fabric::kernels::testing::FuzzCheckMessage(data, size);
  return 0;
}
