// The four MoE kernels and their transposes, as plain structs of pointers: the CPU and CUDA versions share them and
// their tests. Kernels never allocate, throw, or look at anything but their arguments.
//
// Shapes (see MoeShape): T rows of x (t_rows <= max_tokens), K = top_k, N = ranks, L = LocalTopK(), C = capacity,
// H = hidden. All arrays are dense and row-major.
#ifndef JAX_FABRIC_KERNELS_MOE_KERNELS_H_
#define JAX_FABRIC_KERNELS_MOE_KERNELS_H_

#include <cstdint>

#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels {

// How the rows of one dispatch travelled: residual of its combine and of both transposes. Rounds: see rounds.h.
struct SendRoute {                // kept by the token's rank
  int32_t* index = nullptr;       // [T, N] row of token t among those to rank r, or -1
  int32_t* slot = nullptr;        // [T, K] rank * L + i where (token t, choice k) became entry i of its row, or -1
  int32_t* token_ends = nullptr;  // [MaxRounds] round r took the tokens below token_ends[r] that were left
};
struct ReceiveRoute {            // kept by the expert's rank
  int32_t* positions = nullptr;  // [N, T, L] row of `tokens` for entry i of row j from source s, or -1
  int32_t* rows = nullptr;       // [N, MaxRounds] rows from each source in each round, -1 where there was no round
};

// What the header of an outgoing message says beyond the counts.
struct MessageStamp {
  uint64_t incarnation = 0;
  uint64_t signature = 0;
  int64_t sequence = 0;
  uint32_t channel = 0;
  uint32_t membership_epoch = 0;
};

// Every kernel has `cache_bytes`: where an exchange moves more through this rank (rows in messages, and rows of
// experts), rows are written past the caches, since nobody reads them before they would have left the caches anyway.
// Results are the same.
inline constexpr int64_t kAlwaysCached = INT64_MAX;

struct DispatchSendArgs {
  SlotLayout layout;
  MessageStamp stamp;
  int32_t round = 0;
  int32_t t_rows = 0;
  ElementType x_type = ElementType::kFloat32;
  const void* x = nullptr;           // [t_rows, H]; where the layout is quantised and x is not, it is quantised here
  const float* scales = nullptr;     // [t_rows, ScalesOfRow()] of x that is float8_e4m3fn; else unused
  const int32_t* experts = nullptr;  // [t_rows, K]; ids outside [0, E) are not routed
  const float* weights = nullptr;    // [t_rows, K]
  const uint8_t* absent = nullptr;   // [N] or null: not 0 for ranks to whose experts nothing is routed
  SendRoute route;                   // out of the first round, in of the others
  void* const* slots = nullptr;      // [N] where the message for each rank is written: its slot, or a staging buffer
  int64_t* message_bytes = nullptr;  // [N] out
  int64_t cache_bytes = kAlwaysCached;
};
// An expert named twice by a token becomes one entry with the summed weight; both choices get its slot number.
void DispatchSend(const DispatchSendArgs& args);

// The first round places all rows, whose number it knows, and so all results but `tokens` are complete after it.
struct DispatchReceiveArgs {
  SlotLayout layout;
  int32_t round = 0;
  const void* const* slots = nullptr;  // [N] this rank's slot of each source (checked by CheckMessage before)
  ElementType tokens_type = ElementType::kFloat32;
  void* tokens = nullptr;          // out [C, H], ordered by (expert, source rank, token)
  float* scales = nullptr;         // out [C, ScalesOfRow()] of quantised rows whose tokens stay so; else unused
  float* weights = nullptr;        // out [C], 0 past sum(group_sizes)
  int32_t* group_sizes = nullptr;  // out [experts_per_rank]
  ReceiveRoute route;              // out of the first round, in of the others
  // B independent batches may share an exchange (jax.vmap). Element b of it has rows [b * element_rows, (b + 1) *
  // element_rows) of every source's x, and rows [b * C, (b + 1) * C) of the results; then tokens is [B * C, H], weights
  // [B * C], group_sizes [B * experts_per_rank] and dropped [B].
  int32_t elements = 1;
  int32_t element_rows = INT32_MAX;
  bool drop_overflow = false;  // else the caller has checked the counts
  bool zero_padding = false;   // rows past sum(group_sizes) are unspecified unless set
  int32_t* dropped = nullptr;  // out [1] or null: entries that found no room, the last ones in that order
  int64_t cache_bytes = kAlwaysCached;
};
void DispatchReceive(const DispatchReceiveArgs& args);

// Combine and dispatch-back. Sums run over a token's local experts by rising expert, in float32, rounded once.
struct CombineSendArgs {
  SlotLayout layout;
  MessageStamp stamp;
  int32_t round = 0;
  ExchangeKind kind = ExchangeKind::kCombine;
  ElementType y_type = ElementType::kFloat32;
  const void* y = nullptr;             // [C, H]
  const float* row_weights = nullptr;  // [C] or null: unweighted
  const float* row_scalars = nullptr;  // [C] for kDispatchBack, which sends L floats a row (null: zeros); else unused
  ReceiveRoute route;                  // in
  void* const* slots = nullptr;        // [N]
  int64_t* message_bytes = nullptr;    // [N] out
  int64_t cache_bytes = kAlwaysCached;
};
void CombineSend(const CombineSendArgs& args);

struct CombineReceiveArgs {
  SlotLayout layout;
  int32_t round = 0;
  ExchangeKind kind = ExchangeKind::kCombine;
  const void* const* slots = nullptr;  // [N]
  int32_t t_rows = 0;
  SendRoute route;  // in
  ElementType out_type = ElementType::kFloat32;
  // Of the tokens of this round, all of whose rows are here.
  void* out = nullptr;       // out [t_rows, H]: sum over ranks in rising order, in float32, rounded once
  float* scalars = nullptr;  // out [t_rows, K] or null: the row scalar of each (token, choice), 0 if unrouted
  int64_t cache_bytes = kAlwaysCached;
};
void CombineReceive(const CombineReceiveArgs& args);

// Transpose of combine: rows of x travel along the routes of an earlier dispatch.
struct RedispatchSendArgs {
  SlotLayout layout;
  MessageStamp stamp;
  int32_t round = 0;
  ExchangeKind kind = ExchangeKind::kRedispatch;  // or kDispatch, whose later rounds are no different
  int32_t t_rows = 0;
  ElementType x_type = ElementType::kFloat32;
  const void* x = nullptr;           // [t_rows, H]
  const float* scales = nullptr;     // as in dispatch, for its later rounds
  SendRoute route;                   // in
  void* const* slots = nullptr;      // [N]
  int64_t* message_bytes = nullptr;  // [N] out
  int64_t cache_bytes = kAlwaysCached;
};
void RedispatchSend(const RedispatchSendArgs& args);

struct RedispatchReceiveArgs {
  SlotLayout layout;
  int32_t round = 0;
  ExchangeKind kind = ExchangeKind::kRedispatch;  // or kDispatch
  const void* const* slots = nullptr;             // [N]
  ReceiveRoute route;                             // in
  const float* row_weights = nullptr;             // [C] or null
  ElementType y_type = ElementType::kFloat32;
  const void* y = nullptr;  // [C, H] or null
  ElementType out_type = ElementType::kFloat32;
  void* out = nullptr;      // out [C, H]: row * weight; rows that nothing routed to are zero
  float* dots = nullptr;    // out [C] or null: <row, y> in float32; 0 where nothing routed to
  float* scales = nullptr;  // as in dispatch, for its later rounds
  int64_t cache_bytes = kAlwaysCached;
};
void RedispatchReceive(const RedispatchReceiveArgs& args);

// What a message must hold. `rows` is -1 in the first round of a dispatch, where only the message knows.
struct ExpectedRows {
  int32_t round = 0;
  int64_t rows = -1;
  int64_t first_row = 0;  // of them, among all rows of the call; means nothing if there are none
};

// Bounds of a message that a peer wrote, before anything in it is used. Returns null, or what is wrong (a literal).
// `stamp.incarnation` is the source's; 0 accepts any.
const char* CheckMessage(const SlotLayout& layout, const void* slot, ExchangeKind kind, const MessageStamp& stamp,
                         int32_t source, const ExpectedRows& expected = {});

}  // namespace jax_fabric::kernels

#endif  // JAX_FABRIC_KERNELS_MOE_KERNELS_H_
