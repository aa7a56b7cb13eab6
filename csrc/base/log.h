// Log lines for people, on standard error. Never on a hot path.
#ifndef JAX_FABRIC_BASE_LOG_H_
#define JAX_FABRIC_BASE_LOG_H_

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>

namespace jax_fabric {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError, kOff };

namespace log_internal {
// Relaxed: nothing is ordered by it.
inline std::atomic<LogLevel> least_level{LogLevel::kWarning};
void Write(LogLevel level, std::string_view message);
}  // namespace log_internal

inline void SetLogLevel(LogLevel least) { log_internal::least_level.store(least, std::memory_order_relaxed); }

// Log(LogLevel::kWarning, "peer {} is gone", name)
template <typename... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level < log_internal::least_level.load(std::memory_order_relaxed)) return;
  log_internal::Write(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_LOG_H_
