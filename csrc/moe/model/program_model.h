// MoE exchanges as programs of writes on this library's engines: the paper's protocol, and the messages of our own
// without its channels. Either may run on a few ranks that stand for many: rank r of R posts what rank r of N would, N
// - 1 writes, to the others of the R in turn, and hears as many.
#ifndef JAX_FABRIC_MOE_MODEL_PROGRAM_MODEL_H_
#define JAX_FABRIC_MOE_MODEL_PROGRAM_MODEL_H_

#include "csrc/moe/model/model_options.h"

namespace jax_fabric::moe::model {

// `options` are valid.
Result<ModelTimes> RunProgramModel(const ModelOptions& options);

}  // namespace jax_fabric::moe::model

#endif  // JAX_FABRIC_MOE_MODEL_PROGRAM_MODEL_H_
