#include "csrc/engine/replay_filter.h"

#include <algorithm>
#include <limits>

namespace jax_fabric {

bool ReplayFilter::Accept(uint64_t sequence) {
  if (sequence < next_) return TakeMissing(sequence);
  if (sequence == std::numeric_limits<uint64_t>::max()) return false;  // nothing could come after it
  if (sequence > next_) missing_.push_back({next_, sequence - 1});
  next_ = sequence + 1;
  Bound();
  return true;
}

bool ReplayFilter::TakeMissing(uint64_t sequence) {
  const auto range = std::lower_bound(missing_.begin(), missing_.end(), sequence,
                                      [](const Range& r, uint64_t number) { return r.last < number; });
  if (range == missing_.end() || sequence < range->first) return false;
  if (range->first == range->last) {
    missing_.erase(range);
  } else if (sequence == range->first) {
    ++range->first;
  } else if (sequence == range->last) {
    --range->last;
  } else {
    const Range upper = {sequence + 1, range->last};
    range->last = sequence - 1;
    missing_.insert(range + 1, upper);
    Bound();
  }
  return true;
}

void ReplayFilter::Bound() {
  if (missing_.size() > kMaxMissingRanges) missing_.erase(missing_.begin());
}

}  // namespace jax_fabric
