// For tests of the kernels: all ranks of a fabric in one thread, with slots in plain memory.
#ifndef JAX_FABRIC_KERNELS_CPU_KERNELS_TESTING_H_
#define JAX_FABRIC_KERNELS_CPU_KERNELS_TESTING_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/kernels/rounds.h"

namespace jax_fabric::kernels::testing {

// What fills memory before a kernel runs: a NaN in every type.
inline constexpr uint8_t kPoison = 0xff;

float Decode(ElementType type, const void* element);
void Encode(ElementType type, void* element, float value);
float RoundTo(ElementType type, float value);

// A dense array of elements of any type.
class Array {
 public:
  Array() = default;
  Array(ElementType type, int64_t size) : type_(type), bytes_(size * ElementBytes(type), kPoison) {}

  ElementType type() const { return type_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()) / ElementBytes(type_); }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  float Get(int64_t i) const { return Decode(type_, bytes_.data() + i * ElementBytes(type_)); }
  void Set(int64_t i, float value) { Encode(type_, bytes_.data() + i * ElementBytes(type_), value); }
  uint32_t Bits(int64_t i) const;
  // Whether elements [begin, end) consist of that byte.
  bool FilledWith(uint8_t byte, int64_t begin, int64_t end) const;

 private:
  ElementType type_ = ElementType::kFloat32;
  std::vector<uint8_t> bytes_;
};

enum class Routing { kUniform, kFirstExpert, kLastExpert, kOneRank, kZipf, kNone, kLastRowOnly };
inline constexpr Routing kAllRoutings[] = {Routing::kUniform,    Routing::kFirstExpert, Routing::kLastExpert,
                                           Routing::kOneRank,    Routing::kZipf,        Routing::kNone,
                                           Routing::kLastRowOnly};

struct WorldConfig {
  int32_t ranks = 1;
  int32_t experts = 1;
  int32_t max_tokens = 8;
  int32_t top_k = 1;
  int32_t hidden = 8;
  int64_t capacity = -1;  // -1: enough for anything
  int32_t private_tokens = std::numeric_limits<int32_t>::max();
  Routing routing = Routing::kUniform;
  bool odd_ids = true;        // some ids that route nowhere, and some twice in a token
  bool odd_values = false;    // some elements of x are infinite or NaN
  bool full_batches = false;  // else t_rows of each rank is random, 0 and max_tokens included
  int64_t cache_bytes = kAlwaysCached;
  ElementType x_type = ElementType::kFloat32;
  ElementType dispatch_type = ElementType::kFloat32;
  ElementType tokens_type = ElementType::kFloat32;
  ElementType y_type = ElementType::kFloat32;
  ElementType combine_type = ElementType::kFloat32;
  ElementType out_type = ElementType::kFloat32;
  ElementType redispatch_type = ElementType::kFloat32;
  bool quantised = false;  // then dispatch_type is float8_e4m3fn
  // [ranks], not 0 for those that are absent: they have no tokens, and nothing is routed to their experts. Or empty.
  std::vector<uint8_t> absent = {};

  bool IsAbsent(int64_t rank) const { return !absent.empty() && absent[rank] != 0; }
  std::string Describe() const;
};

// The arrays of one rank. Kernels run on what Poison() left, except for inputs.
struct RankState {
  SlotLayout layout;
  int32_t t_rows = 0;
  Array x;                           // [t_rows, H]
  std::vector<float> x_scales;       // [t_rows, ScalesOfRow()]
  std::vector<int32_t> experts;      // [t_rows, K]
  std::vector<float> weights;        // [t_rows, K]
  std::vector<int32_t> index;        // [t_rows, N]
  std::vector<int32_t> slot;         // [t_rows, K]
  std::vector<int32_t> token_ends;   // [MaxRounds]
  Array tokens;                      // [C, H]
  std::vector<float> scales;         // [C, ScalesOfRow()]
  std::vector<float> row_weights;    // [C]
  std::vector<int32_t> group_sizes;  // [experts_per_rank]
  std::vector<int32_t> positions;    // [N, T, L]
  std::vector<int32_t> rows;         // [N, MaxRounds]
  int32_t dropped = -1;

  SendRoute send_route() { return {index.data(), slot.data(), token_ends.data()}; }
  ReceiveRoute receive_route() { return {positions.data(), rows.data()}; }
  int64_t routed_rows() const;
  int64_t rows_from(int64_t source) const;
};

// What x of a rank is in float8_e4m3fn.
struct QuantisedRows {
  std::vector<uint32_t> bits;  // [t_rows, H]
  std::vector<float> scales;   // [t_rows, ceil(H / 128)]
};
QuantisedRows Quantised(const RankState& state);

// The kernels that World runs: all implementations have one contract, and the same tests.
struct KernelSet {
  void (*dispatch_send)(const DispatchSendArgs& args);
  void (*dispatch_receive)(const DispatchReceiveArgs& args);
  void (*combine_send)(const CombineSendArgs& args);
  void (*combine_receive)(const CombineReceiveArgs& args);
  void (*redispatch_send)(const RedispatchSendArgs& args);
  void (*redispatch_receive)(const RedispatchReceiveArgs& args);
};
// Of the library that the test is linked with: :kernels_under_test, or that of csrc/kernels/cuda.
const KernelSet& KernelsUnderTest();

class World {
 public:
  World(const WorldConfig& config, uint64_t seed);

  const WorldConfig& config() const { return config_; }
  RankState& rank(int64_t r) { return states_[r]; }
  int64_t ranks() const { return config_.ranks; }
  std::mt19937_64& random() { return random_; }
  float RandomFloat() { return std::normal_distribution<float>()(random_); }
  Array RandomArray(ElementType type, int64_t size);

  // Each runs, round by round, the send kernel of all ranks, checks every message and what lies around it, and runs the
  // receive kernel of all ranks. Inputs and results are indexed by rank.
  void Dispatch(bool drop_overflow = false, bool zero_padding = false);
  // One round's messages of all ranks; of the first one, or of another one of the last dispatch.
  void SendDispatch(int32_t round);
  struct CombineResult {
    std::vector<Array> out;                   // [t_rows, H] each
    std::vector<std::vector<float>> scalars;  // [t_rows, K] each
  };
  // `row_scalars` makes it a dispatch-back.
  CombineResult Combine(const std::vector<Array>& y, bool weighted,
                        const std::vector<std::vector<float>>* row_scalars = nullptr);
  struct RedispatchResult {
    std::vector<Array> out;                // [C, H] each
    std::vector<std::vector<float>> dots;  // [C] each
  };
  RedispatchResult Redispatch(const std::vector<Array>& x, bool weighted, const std::vector<Array>* y);

  // The slot of `source` at `rank`: SlotBytes() bytes with guards around them.
  void* Slot(int64_t rank, int64_t source);
  MessageStamp Stamp(int64_t source) const;
  // Of the last dispatch, equal on all ranks.
  int32_t rounds();
  // What fills the slots before each exchange from now on.
  void set_slot_poison(uint8_t poison) { slot_poison_ = poison; }
  // Of the last exchange, the bytes of the message in a slot.
  std::vector<uint8_t> Message(int64_t rank, int64_t source);

 private:
  // A kernel on every rank, with what `args_of` says of the rank and its number, and what all kernels take.
  template <typename Args, typename ArgsOf>
  void SendFromAll(ExchangeKind kind, int32_t round, void (*kernel)(const Args&), ArgsOf args_of);
  template <typename Args, typename ArgsOf>
  void ReceiveAtAll(int32_t round, void (*kernel)(const Args&), ArgsOf args_of);
  // Starts a new exchange: another sequence number, and poison in all slots.
  void PoisonSlots();
  void MakeInputs(RankState& state);
  int32_t DrawExpert(int64_t row, int64_t rows);
  std::vector<void*> SlotsFrom(int64_t source);
  std::vector<const void*> SlotsAt(int64_t rank);
  void CheckSent(int64_t source, ExchangeKind kind, int32_t round, const std::vector<int64_t>& message_bytes);

  WorldConfig config_;
  std::mt19937_64 random_;
  std::vector<RankState> states_;
  int64_t slot_bytes_ = 0;
  int64_t sequence_ = 0;
  uint8_t slot_poison_ = kPoison;
  std::vector<std::vector<int64_t>> message_bytes_;  // [source][rank]
  std::unique_ptr<uint8_t[]> memory_;
  uint8_t* slots_ = nullptr;  // [rank][source], guards included
};

}  // namespace jax_fabric::kernels::testing

#endif  // JAX_FABRIC_KERNELS_CPU_KERNELS_TESTING_H_
