#include "csrc/base/log.h"

#include <unistd.h>

#include <string>

namespace jax_fabric::log_internal {

void Write(LogLevel level, std::string_view message) {
  static constexpr std::string_view kLetters = "DIWE";
  const std::string line = fmt::format("jax_fabric {} {}\n", kLetters[static_cast<size_t>(level) % 4], message);
  // One system call, so that lines of several threads and processes do not mix.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace jax_fabric::log_internal
