// The GID table of a device of the double: among what RoCE NICs have, entries that must not be chosen.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DOUBLE_GIDS_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DOUBLE_GIDS_H_

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace jax_fabric::verbs_double {

inline constexpr int kGids = 6;
inline constexpr int kZeroGid = 2;
inline constexpr int kBestGid = 4;  // global, of RoCE version 2

// Global ones carry the device; link-local ones lead nowhere.
inline ibv_gid_entry GidEntry(uint64_t device, int index) {
  ibv_gid_entry entry = {};
  entry.gid_index = static_cast<uint32_t>(index);
  entry.port_num = 1;
  constexpr std::array<uint32_t, kGids> kTypes = {IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_GID_TYPE_ROCE_V2,
                                                  IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_GID_TYPE_ROCE_V2};
  entry.gid_type = kTypes[static_cast<size_t>(index)];
  if (index == kZeroGid) return entry;
  const bool global = index >= 3;
  entry.gid.raw[0] = global ? 0xfd : 0xfe;
  entry.gid.raw[1] = global ? 0 : 0x80;
  if (global) std::memcpy(&entry.gid.raw[8], &device, sizeof(device));
  return entry;
}

inline uint64_t DeviceOf(const ibv_gid& gid) {
  uint64_t device = 0;
  std::memcpy(&device, &gid.raw[8], sizeof(device));
  return device;
}

}  // namespace jax_fabric::verbs_double

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DOUBLE_GIDS_H_
