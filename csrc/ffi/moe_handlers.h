// The custom calls of jax_fabric.moe on CPU: each is a whole exchange, or a half of one.
//
// A whole exchange takes no number beforehand: XLA may run a program's calls one after the other, in any order that
// their data allows, so a call must not wait for another one that comes later. For the same reason exchanges in two
// halves need a channel for each that is in flight.
//
// Operands and results (N ranks, T rows, K = top_k, H, C = capacity, L = local top k, R = rounds at most; see
// kernels/moe_kernels.h):
//   jf_moe_dispatch    rank, x, experts, weights, after -> tokens [C,H], weights [C], group_sizes, dropped, token,
//                                                          index [T,N], slot [T,K], token_ends [R],
//                                                          positions [N,T,L], rows [N,R]
//   jf_moe_combine     rank, y, weights, scalars, index, slot, token_ends, positions, rows, after
//                                                       -> out [T,H], scalars [T,K], token
//   jf_moe_redispatch  rank, x, weights, y, index, slot, token_ends, positions, rows, after
//                                                       -> out [C,H], dots [C], token
//   jf_moe_dispatch_start  rank, x, experts, weights, after                    -> ticket, index, slot, token_ends
//   jf_moe_dispatch_done   rank, ticket, x, index, slot, token_ends, anything to compute first
//                                          -> tokens, weights, group_sizes, dropped, token, positions, rows
//   jf_moe_combine_start   rank, y, weights, scalars, positions, rows, after   -> ticket
//   jf_moe_combine_done    rank, ticket, index, slot, token_ends, y, weights, positions, rows, anything to compute
//                          first                                               -> out, token
// Optional operands (weights and scalars of combine, weights and y of redispatch, with R = 1 what the done calls send)
// have size 0 when absent. `after` (s32, any size) only orders; token and ticket (s32[1]) are the call's number on its
// channel.
#ifndef JAX_FABRIC_FFI_MOE_HANDLERS_H_
#define JAX_FABRIC_FFI_MOE_HANDLERS_H_

#include <utility>
#include <vector>

#include "csrc/ffi/target.h"
#include "csrc/ffi/xla_ffi.h"

namespace jax_fabric::ffi_layer {

// Everything to register with XLA for the platform "cpu".
std::vector<Target> MoeTargets();
// Those of them that are halves of exchanges.
std::vector<Target> StartedMoeTargets();
// State type of the calls: must be registered before the targets.
std::pair<XLA_FFI_TypeId*, XLA_FFI_TypeInfo*> CallSiteType();

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_MOE_HANDLERS_H_
