// How the rows of one call are split into rounds, each of them an exchange: pure arithmetic on routes.
//
// A message has room for P = MoeShape::private_tokens rows. Each rank splits its own tokens, in their order: a round
// takes as many of the tokens that are left as no rank gets more than P rows of. So all rows of a token travel in one
// round, and a token's sum is made at once, in the same order, whatever P is. A call takes the rounds of the rank that
// needs most; the first messages of a dispatch say how many each rank needs. One round is enough exactly when no rank
// has more than P rows for another; MaxRounds() are enough for any routing.
//
// Routes have been through the program: whatever they hold, the ranges lie within their arrays.
#ifndef JAX_FABRIC_KERNELS_ROUNDS_H_
#define JAX_FABRIC_KERNELS_ROUNDS_H_

#include <cstdint>

#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::kernels {

struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  constexpr int64_t size() const { return end - begin; }
};

// `value`, or the nearest number in [0, most].
constexpr int64_t ClampCount(int64_t value, int64_t most) { return value < 0 ? 0 : value < most ? value : most; }

// How many rounds the calls on this route take.
constexpr int32_t RoundsOf(const MoeShape& shape, const ReceiveRoute& route) {
  int32_t rounds = 1;
  while (rounds < shape.MaxRounds() && route.rows[rounds] >= 0) ++rounds;
  return rounds;
}

// Of the rows from `source`, those of a round.
constexpr IndexRange RowsInRound(const MoeShape& shape, const ReceiveRoute& route, int64_t source, int32_t round) {
  const int32_t* rows = route.rows + source * shape.MaxRounds();
  int64_t begin = 0;
  for (int32_t r = 0; r < round; ++r) begin += ClampCount(rows[r], shape.MessageRows());
  begin = ClampCount(begin, shape.max_tokens);
  const int64_t size = ClampCount(rows[round], shape.MessageRows());
  return {begin, ClampCount(begin + size, shape.max_tokens)};
}

// This rank's tokens whose rows travel in a round.
constexpr IndexRange TokensInRound(const MoeShape& shape, const SendRoute& route, int64_t t_rows, int32_t round) {
  if (shape.MaxRounds() == 1) return {0, t_rows};
  const int64_t begin = round == 0 ? 0 : ClampCount(route.token_ends[round - 1], t_rows);
  const int64_t end = ClampCount(route.token_ends[round], t_rows);
  return {begin, end < begin ? begin : end};
}

}  // namespace jax_fabric::kernels

#endif  // JAX_FABRIC_KERNELS_ROUNDS_H_
