// This library's MoE exchange as it is: contexts, channels and engines, with kernels that take their time on the
// virtual clock and write what the protocol reads (headers, counts, routes), and no rows.
#ifndef JAX_FABRIC_MOE_MODEL_CHANNEL_MODEL_H_
#define JAX_FABRIC_MOE_MODEL_CHANNEL_MODEL_H_

#include "csrc/moe/model/model_options.h"

namespace jax_fabric::moe::model {

// `options` are valid.
Result<ModelTimes> RunChannelModel(const ModelOptions& options);

}  // namespace jax_fabric::moe::model

#endif  // JAX_FABRIC_MOE_MODEL_CHANNEL_MODEL_H_
