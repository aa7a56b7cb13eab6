// How a transfer is cut into posted writes. Pure functions.
//
// The number of parts depends only on what both sides know before the transfer: the declared maximum length, the
// number of NICs and the smaller of both sides' size limits. Each part carries the immediate, so a receiver that
// calls PartCount with the same arguments knows how many to expect, whatever the actual length.
#ifndef JAX_FABRIC_ENGINE_SHARD_PLAN_H_
#define JAX_FABRIC_ENGINE_SHARD_PLAN_H_

#include <cstdint>

namespace jax_fabric {

inline constexpr uint64_t kPageBytes = 4096;
inline constexpr uint64_t kMaxPartBytes = uint64_t{1} << 30;
// Below this a further NIC costs more than it brings.
inline constexpr uint64_t kMinShardBytes = uint64_t{16} << 10;
// Lengths above are refused, so that no sum below can overflow.
inline constexpr uint64_t kMaxTransferBytes = uint64_t{1} << 56;

enum class Spread : uint8_t {
  kAllNics,  // large transfers use every NIC
  kOneNic,   // split only where the limit demands it: MoE writes, scatters
};

// Bytes [offset, offset + length) of the transfer.
struct Part {
  uint64_t offset = 0;
  uint64_t length = 0;
};

// The longest part: the smaller of 1 GiB and both sides' limits, rounded down to whole pages where it has any.
uint64_t PartLimit(uint64_t own_max_write_bytes, uint64_t peer_max_write_bytes);

// At least 1. `part_limit` is PartLimit's and at least 1.
uint64_t PartCount(uint64_t max_length, uint32_t nic_count, uint64_t part_limit, Spread spread);

// Part `index` of `count` of a transfer that is now `length` long; parts past the end have length 0 (and their
// offset is `length`). Offsets are page-aligned where part_limit is.
Part PartOf(uint64_t length, uint64_t count, uint64_t index, uint64_t part_limit);

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_SHARD_PLAN_H_
