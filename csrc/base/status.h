// Errors as values. Everything in csrc/ returns Status or Result<T>; the conversion to an XLA error or a
// Python exception happens once, in csrc/ffi.
#ifndef JAX_FABRIC_BASE_STATUS_H_
#define JAX_FABRIC_BASE_STATUS_H_

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace jax_fabric {

// The canonical codes of absl::StatusCode and XLA_FFI_Error_Code (same numbers), so that conversions are casts.
enum class ErrorCode : uint8_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

std::string_view ErrorCodeName(ErrorCode code);

// What went wrong. `message` names the operation, the argument or peer, the value seen and the fix.
struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kUnknown;
  std::string message;
  // Whom it concerns, where that is known: "peer 3 'decoder-1'" and "mlx5_0". `message` says it, too.
  std::string peer = {};
  std::string nic = {};
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = tl::expected<void, Error>;

// MakeError(ErrorCode::kNotFound, "peer {} is unknown", id)
template <typename... Args>
tl::unexpected<Error> MakeError(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

}  // namespace jax_fabric

#define JF_CONCAT_INNER(a, b) a##b
#define JF_CONCAT(a, b) JF_CONCAT_INNER(a, b)

#define JF_RETURN_IF_ERROR(expr)                                                  \
  do {                                                                            \
    if (auto jf_status = (expr); !jf_status.has_value())                          \
      return ::tl::unexpected<::jax_fabric::Error>(std::move(jf_status).error()); \
  } while (false)

// JF_ASSIGN_OR_RETURN(auto region, Register(...));
#define JF_ASSIGN_OR_RETURN(lhs, expr) JF_ASSIGN_OR_RETURN_IMPL(JF_CONCAT(jf_result_, __LINE__), lhs, expr)
#define JF_ASSIGN_OR_RETURN_IMPL(result, lhs, expr)                                                 \
  auto result = (expr);                                                                             \
  if (!result.has_value()) return ::tl::unexpected<::jax_fabric::Error>(std::move(result).error()); \
  lhs = std::move(result).value()

#endif  // JAX_FABRIC_BASE_STATUS_H_
