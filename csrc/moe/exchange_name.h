#ifndef JAX_FABRIC_MOE_EXCHANGE_NAME_H_
#define JAX_FABRIC_MOE_EXCHANGE_NAME_H_

#include "csrc/kernels/moe_layout.h"

namespace jax_fabric::moe {

// For messages: what its caller calls it.
inline const char* NameOf(kernels::ExchangeKind kind) {
  switch (kind) {
    case kernels::ExchangeKind::kDispatch:
      return "dispatch";
    case kernels::ExchangeKind::kCombine:
      return "combine";
    case kernels::ExchangeKind::kRedispatch:
      return "gradient of combine";
    case kernels::ExchangeKind::kDispatchBack:
      return "gradient of dispatch";
  }
  return "exchange";
}

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_EXCHANGE_NAME_H_
