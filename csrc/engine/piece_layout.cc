#include "csrc/engine/piece_layout.h"

#include "csrc/engine/shard_plan.h"

namespace jax_fabric {
namespace {

uint64_t WholePages(uint64_t bytes) { return bytes < kPageBytes ? bytes : bytes - bytes % kPageBytes; }

// Of all NICs, since they share the layout; 0 is no limit.
uint64_t SmallestRegionLimit(std::span<const std::unique_ptr<Domain>> domains) {
  uint64_t smallest = ~uint64_t{0};
  for (const auto& domain : domains) {
    const uint64_t limit = domain->limits().max_region_bytes;
    if (limit != 0) smallest = std::min(smallest, limit);
  }
  return smallest;
}

}  // namespace

uint64_t GroupWriteLimit(std::span<const std::unique_ptr<Domain>> domains) {
  uint64_t limit = kMaxPartBytes;
  for (const auto& domain : domains) limit = std::min(limit, domain->limits().max_write_bytes);
  return std::min(limit, WholePages(SmallestRegionLimit(domains) / 2));
}

PieceLayout LayoutOf(uint64_t length, std::span<const std::unique_ptr<Domain>> domains, uint64_t write_limit) {
  const uint64_t largest = SmallestRegionLimit(domains);
  if (length <= largest) return {.stride = length, .bytes = length, .count = 1};
  const uint64_t bytes = WholePages(largest);
  const uint64_t stride = bytes - write_limit;
  const uint64_t behind_first = length - bytes;
  return {.stride = stride, .bytes = bytes, .count = 1 + behind_first / stride + (behind_first % stride != 0)};
}

}  // namespace jax_fabric
