// Who has how many rows for whom in one dispatch, drawn from a seed: every token of every rank goes to top_k different
// experts, each as likely as any other.
#ifndef JAX_FABRIC_MOE_MODEL_WORKLOAD_H_
#define JAX_FABRIC_MOE_MODEL_WORKLOAD_H_

#include <cstdint>
#include <vector>

#include "csrc/moe/model/model_options.h"

namespace jax_fabric::moe::model {

class Workload {
 public:
  Workload(const ModelOptions& options, uint64_t seed);

  // Tokens of `source` with an expert on `target`: rows, where each goes to a rank once.
  int64_t Rows(int32_t source, int32_t target) const { return rows_[Index(source, target)]; }
  // The same counted for each expert: rows, where each goes to every expert.
  int64_t Entries(int32_t source, int32_t target) const { return entries_[Index(source, target)]; }
  // Of Rows, those that travel in a round (kernels/rounds.h).
  int64_t RowsInRound(int32_t source, int32_t target, int32_t round) const;
  int64_t FirstRow(int32_t source, int32_t target, int32_t round) const;
  // Of a source, and of the call.
  int32_t RoundsOf(int32_t source) const { return static_cast<int32_t>(rounds_[source].size()); }
  int32_t rounds() const { return all_rounds_; }
  int64_t EntriesFor(int32_t target) const;
  // Share of a rank's rows that travel in a round.
  double ShareOfRound(int32_t source, int32_t round) const;

 private:
  size_t Index(int32_t source, int32_t target) const { return static_cast<size_t>(source) * ranks_ + target; }

  const int32_t ranks_;
  int32_t all_rounds_ = 1;
  std::vector<int32_t> rows_;
  std::vector<int32_t> entries_;
  std::vector<std::vector<std::vector<int32_t>>> rounds_;  // [source][round][target] rows
};

}  // namespace jax_fabric::moe::model

#endif  // JAX_FABRIC_MOE_MODEL_WORKLOAD_H_
