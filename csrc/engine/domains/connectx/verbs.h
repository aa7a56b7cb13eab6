// The functions of libibverbs that are real symbols, opened at run time. What posts and polls is inline in its headers
// and goes through tables of the objects. Some names are macros there: call those as (verbs.ibv_reg_mr)(...).
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_VERBS_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_VERBS_H_

#include <infiniband/verbs.h>

#include <string>

#include "csrc/base/status.h"

namespace jax_fabric::connectx {

#define JF_VERBS_SYMBOLS(X)   \
  X(ibv_get_device_list)      \
  X(ibv_free_device_list)     \
  X(ibv_get_device_name)      \
  X(ibv_open_device)          \
  X(ibv_close_device)         \
  X(ibv_query_device)         \
  X(ibv_query_port)           \
  X(_ibv_query_gid_ex)        \
  X(ibv_alloc_pd)             \
  X(ibv_dealloc_pd)           \
  X(ibv_reg_mr)               \
  X(ibv_reg_mr_iova2)         \
  X(ibv_dereg_mr)             \
  X(ibv_create_comp_channel)  \
  X(ibv_destroy_comp_channel) \
  X(ibv_get_cq_event)         \
  X(ibv_ack_cq_events)        \
  X(ibv_create_cq)            \
  X(ibv_destroy_cq)           \
  X(ibv_create_srq)           \
  X(ibv_destroy_srq)          \
  X(ibv_create_qp)            \
  X(ibv_modify_qp)            \
  X(ibv_destroy_qp)           \
  X(ibv_create_ah)            \
  X(ibv_destroy_ah)           \
  X(ibv_wc_status_str)        \
  X(ibv_port_state_str)

struct Verbs {
  // rdma-core 34 and newer; else null.
  decltype(&::ibv_reg_dmabuf_mr) ibv_reg_dmabuf_mr = nullptr;
#define JF_DECLARE(name) decltype(&::name) name = nullptr;
  JF_VERBS_SYMBOLS(JF_DECLARE)
#undef JF_DECLARE

  // Stays open for the life of the process. `library`: a file name or path; empty: the system's.
  static Result<const Verbs*> Load(const std::string& library);

  // As the inline function of the header, which would need the symbol at link time.
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr& attributes) const;
};

// "Cannot allocate memory (errno 12)"
std::string ErrnoWords(int error);

}  // namespace jax_fabric::connectx

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_VERBS_H_
