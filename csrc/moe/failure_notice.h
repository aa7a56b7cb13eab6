// What a rank that gives up a channel tells the others: why. Ranks that wait for it need not wait for their deadlines
// then, and say the first cause.
#ifndef JAX_FABRIC_MOE_FAILURE_NOTICE_H_
#define JAX_FABRIC_MOE_FAILURE_NOTICE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "csrc/base/status.h"

namespace jax_fabric::moe {

struct FailureNotice {
  // Bytes that one takes, and how many of them are words; longer ones are cut.
  static constexpr int64_t kBytes = 1024;
  static constexpr int64_t kMaxReasonBytes = kBytes - 32;

  int32_t origin = 0;  // the rank that gave up first: notices are handed on
  ErrorCode code = ErrorCode::kUnknown;
  std::string reason;
  // The last exchange of which the origin may have sent messages. They may come after the notice.
  int64_t sent_exchanges = INT64_MAX;

  // Into kBytes of memory, aligned to 8.
  void WriteTo(void* memory) const;
  // None where nobody has written one, or not all of it: a NIC writes its bytes in any order. Trusts nothing. Another
  // agent may write `memory` meanwhile.
  static std::optional<FailureNotice> ReadFrom(const void* memory);
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_FAILURE_NOTICE_H_
