#include "csrc/engine/shard_plan.h"

#include <algorithm>

namespace jax_fabric {
namespace {

uint64_t CeilDiv(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

}  // namespace

uint64_t PartLimit(uint64_t own_max_write_bytes, uint64_t peer_max_write_bytes) {
  const uint64_t limit = std::min({own_max_write_bytes, peer_max_write_bytes, kMaxPartBytes});
  return limit < kPageBytes ? std::max<uint64_t>(limit, 1) : limit - limit % kPageBytes;
}

uint64_t PartCount(uint64_t max_length, uint32_t nic_count, uint64_t part_limit, Spread spread) {
  uint64_t count = std::max<uint64_t>(1, CeilDiv(max_length, part_limit));
  if (spread == Spread::kAllNics) {
    count = std::max(count, std::min<uint64_t>(nic_count, CeilDiv(max_length, kMinShardBytes)));
  }
  return count;
}

Part PartOf(uint64_t length, uint64_t count, uint64_t index, uint64_t part_limit) {
  // Rounding up to pages cannot exceed the limit, which is a whole number of pages where pages are used at all.
  const uint64_t alignment = part_limit % kPageBytes == 0 ? kPageBytes : 1;
  const uint64_t chunk = CeilDiv(CeilDiv(length, count), alignment) * alignment;
  const uint64_t begin = chunk == 0 || index > length / chunk ? length : index * chunk;
  return Part{begin, std::min(chunk, length - begin)};
}

}  // namespace jax_fabric
