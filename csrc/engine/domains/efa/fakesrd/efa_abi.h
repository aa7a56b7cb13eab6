// What programs and libefa.so.1 share since rdma-core 52: the headers of Debian 12 are older and have less of it. Not
// beside <infiniband/efadv.h>, which declares the same.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_EFA_ABI_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_EFA_ABI_H_

#include <infiniband/verbs.h>

#include <cstdint>

extern "C" {

struct efadv_device_attr {
  uint64_t comp_mask;
  uint32_t max_sq_wr;
  uint32_t max_rq_wr;
  uint16_t max_sq_sge;
  uint16_t max_rq_sge;
  uint16_t inline_buf_size;
  uint8_t reserved[2];
  uint32_t device_caps;
  uint32_t max_rdma_size;
};

struct efadv_qp_init_attr {
  uint64_t comp_mask;
  uint32_t driver_qp_type;
  uint16_t flags;
  uint8_t sl;
  uint8_t reserved;
};

struct efadv_ah_attr {
  uint64_t comp_mask;
  uint16_t ahn;
  uint8_t reserved[6];
};

struct efadv_cq {
  uint64_t comp_mask;
  int (*wc_read_sgid)(efadv_cq* queue, ibv_gid* gid);
  bool (*wc_is_unsolicited)(efadv_cq* queue);
};

struct efadv_cq_init_attr {
  uint64_t comp_mask;
  uint64_t wc_flags;
};

}  // extern "C"

namespace jax_fabric::fake_srd {

inline constexpr uint32_t kCapsRdmaRead = 1 << 0;
inline constexpr uint32_t kCapsNotReadyRetry = 1 << 1;
inline constexpr uint32_t kCapsSourceGid = 1 << 2;
inline constexpr uint32_t kCapsRdmaWrite = 1 << 3;
inline constexpr uint32_t kCapsUnsolicitedWrites = 1 << 4;
inline constexpr uint16_t kUnsolicitedWrites = 1 << 0;  // of a queue pair: immediates of writes take no receive
inline constexpr uint16_t kUnknownRoute = 0xffff;

}  // namespace jax_fabric::fake_srd

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_EFA_ABI_H_
