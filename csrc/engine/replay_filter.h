#ifndef JAX_FABRIC_ENGINE_REPLAY_FILTER_H_
#define JAX_FABRIC_ENGINE_REPLAY_FILTER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace jax_fabric {

// Which sequence numbers of one sender have been seen. Numbers come in any order, since the network promises none, so
// it remembers the ranges that are missing below the highest one. One thread.
class ReplayFilter {
 public:
  // Where so many are missing, those of the lowest range are given up: that many messages were sent later and came
  // earlier, or were never sent (a range may be as long as it likes).
  static constexpr size_t kMaxMissingRanges = 4096;

  // True the first time that a number comes.
  bool Accept(uint64_t sequence);

  size_t missing_ranges() const { return missing_.size(); }

 private:
  struct Range {
    uint64_t first;
    uint64_t last;
  };

  bool TakeMissing(uint64_t sequence);
  void Bound();

  std::vector<Range> missing_;  // ascending, all below next_
  uint64_t next_ = 0;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_REPLAY_FILTER_H_
