// What a failed work request means.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_COMPLETION_WORDS_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_COMPLETION_WORDS_H_

#include <infiniband/verbs.h>

#include <string_view>

#include "csrc/base/status.h"

namespace jax_fabric::connectx {

struct StatusMeaning {
  ErrorCode code = ErrorCode::kInternal;
  ErrorCode behind = ErrorCode::kAborted;  // of what was posted behind it
  std::string_view words;                  // what to look for
};

// Devices differ in what they say to the same thing; each of these ends the queue pair.
StatusMeaning MeaningOf(ibv_wc_status status);

}  // namespace jax_fabric::connectx

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_COMPLETION_WORDS_H_
