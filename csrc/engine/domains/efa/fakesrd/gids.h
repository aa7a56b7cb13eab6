// The address of a fake device: its number in a GID.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_GIDS_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_GIDS_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>

namespace jax_fabric::fake_srd {

inline ibv_gid GidOf(uint64_t device) {
  ibv_gid gid = {};
  gid.raw[0] = 0xfe;
  gid.raw[1] = 0x80;
  std::memcpy(&gid.raw[8], &device, sizeof(device));
  return gid;
}

inline uint64_t DeviceOf(const ibv_gid& gid) {
  uint64_t device = 0;
  std::memcpy(&device, &gid.raw[8], sizeof(device));
  return device;
}

}  // namespace jax_fabric::fake_srd

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_GIDS_H_
