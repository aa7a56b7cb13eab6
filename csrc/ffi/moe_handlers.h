// The custom calls of jax_fabric.moe on CPU. Every exchange is a ticket, a start and a done; the ticket's result is the
// exchange's number, and start and done take it as data.
//
// Operands and results (N ranks, T rows, K = top_k, H, C = capacity, L = local top k; see kernels/moe_kernels.h):
//   jf_moe_ticket          rank, dependencies...                       -> ticket s32[1]
//   jf_moe_dispatch_start  ticket, rank, x, experts, weights           -> index [T,N], slot [T,K], ticket
//   jf_moe_dispatch_done   ticket, rank                                -> tokens, weights, group_sizes, positions, rows,
//                                                                         dropped, ticket
//   jf_moe_combine_start   ticket, rank, y, weights, scalars, positions, rows          -> ticket
//   jf_moe_combine_done    ticket, rank, index, slot                   -> out [T,H], scalars [T,K], ticket
//   jf_moe_redispatch_start ticket, rank, x, index, slot               -> ticket
//   jf_moe_redispatch_done ticket, rank, positions, rows, weights, y   -> out [C,H], dots [C], ticket
// Optional operands (weights and scalars of combine, weights and y of redispatch) have size 0 when absent.
#ifndef JAX_FABRIC_FFI_MOE_HANDLERS_H_
#define JAX_FABRIC_FFI_MOE_HANDLERS_H_

#include <utility>
#include <vector>

#include "csrc/ffi/xla_ffi.h"

namespace jax_fabric::ffi_layer {

struct Target {
  const char* name;
  XLA_FFI_Handler* instantiate;  // null for most
  XLA_FFI_Handler* execute;
};

// Everything to register with XLA for the platform "cpu".
std::vector<Target> MoeTargets();
// State type of jf_moe_ticket: must be registered before the targets.
std::pair<XLA_FFI_TypeId*, XLA_FFI_TypeInfo*> CallSiteType();

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_MOE_HANDLERS_H_
