// Dense loops over experts, ranks and tokens, which know nothing of messages, say what the kernels' results must be.
#ifndef JAX_FABRIC_KERNELS_CPU_DENSE_CHECKER_H_
#define JAX_FABRIC_KERNELS_CPU_DENSE_CHECKER_H_

#include <cstdint>
#include <vector>

#include "csrc/kernels/cpu/kernels_testing.h"

namespace jax_fabric::kernels::testing {

// One expert row: token t of rank `source` at local expert `expert`.
struct ExpertRow {
  int64_t source, token, row_to_rank, entry;
  float weight;
};

// Failures are those of GoogleTest.
class DenseChecker {
 public:
  explicit DenseChecker(World& world);
  void CheckDispatch(bool zero_padding);
  void CheckCombine(const std::vector<Array>& y, bool weighted, const World::CombineResult& result);
  void CheckScalars(const std::vector<std::vector<float>>& row_scalars, const World::CombineResult& result);
  void CheckRedispatch(const std::vector<Array>& x, bool weighted, const std::vector<Array>* y,
                       const World::RedispatchResult& result);

 private:
  int64_t Total(int64_t rank) const;
  void CheckReceived(int64_t r, bool zero_padding);
  void CheckQuantisedRow(const RankState& state, int64_t c, const ExpertRow& row);
  void CheckMovedRow(const RankState& state, int64_t c, const ExpertRow& row);
  void CheckSendRoute(int64_t s);
  // Position of a token's row at a local expert of a rank, or -1.
  int64_t PositionOf(int64_t rank, int64_t local_expert, int64_t source, int64_t token) const;
  float SumOverRanks(int64_t s, int64_t t, int64_t h, const std::vector<Array>& y, bool weighted);
  // Positions of a token at a rank, by rising expert, -1 where it was dropped. Kept for the last token and all ranks.
  const std::vector<int64_t>& PositionsOf(int64_t rank, int64_t s, int64_t t);

  World& world_;
  const WorldConfig& config_;
  const int64_t hidden_;
  std::vector<std::vector<std::vector<ExpertRow>>> groups_;  // [rank][local expert]
  std::vector<QuantisedRows> quantised_;                     // [rank]
  int64_t cached_source_ = -1, cached_token_ = -1;
  std::vector<std::vector<int64_t>> cached_;
};

}  // namespace jax_fabric::kernels::testing

#endif  // JAX_FABRIC_KERNELS_CPU_DENSE_CHECKER_H_
