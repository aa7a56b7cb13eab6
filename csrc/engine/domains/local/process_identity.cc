#include "csrc/engine/domains/local/process_identity.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "csrc/base/unique_fd.h"

namespace jax_fabric::local {
namespace {

struct ProcessStat {
  char state = '?';
  uint64_t start_time = 0;
};

Result<std::string> ReadSmallFile(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 2048> buffer;
  const ssize_t count = fd.valid() ? read(fd.get(), buffer.data(), buffer.size()) : -1;
  if (count < 0) return MakeError(ErrorCode::kNotFound, "cannot read {}: {}", path, strerror(errno));
  return std::string(buffer.data(), static_cast<size_t>(count));
}

// Fields 3 (state) and 22 (start time) of /proc/<pid>/stat. Field 2, the name, may contain anything, so counting
// starts behind the last parenthesis.
Result<ProcessStat> ReadStat(uint32_t pid) {
  JF_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(fmt::format("/proc/{}/stat", pid)));
  size_t at = text.rfind(')');
  ProcessStat stat;
  for (int field = 3; at != std::string::npos; ++field) {
    at = text.find(' ', at);
    if (at == std::string::npos) break;
    ++at;
    if (field == 3) stat.state = text[at];
    if (field == 22) {
      stat.start_time = std::strtoull(text.c_str() + at, nullptr, 10);
      return stat;
    }
  }
  return MakeError(ErrorCode::kInternal, "/proc/{}/stat cannot be understood", pid);
}

std::string ReadLink(const char* path) {
  std::array<char, 256> buffer;
  const ssize_t count = readlink(path, buffer.data(), buffer.size());
  return count < 0 ? std::string() : std::string(buffer.data(), static_cast<size_t>(count));
}

}  // namespace

Result<ProcessIdentity> ProcessIdentity::Self() {
  ProcessIdentity self;
  self.pid = static_cast<uint32_t>(getpid());
  JF_ASSIGN_OR_RETURN(const ProcessStat stat, ReadStat(self.pid));
  self.start_time = stat.start_time;
  JF_ASSIGN_OR_RETURN(const std::string boot, ReadSmallFile("/proc/sys/kernel/random/boot_id"));
  const std::string machine = boot + ReadLink("/proc/self/ns/pid") + "/" + ReadLink("/proc/self/ns/net");
  self.machine = XXH3_64bits(machine.data(), machine.size());
  return self;
}

bool ProcessIsAlive(uint32_t pid, uint64_t start_time) {
  const auto stat = ReadStat(pid);
  return stat.has_value() && stat->start_time == start_time && stat->state != 'Z' && stat->state != 'X';
}

}  // namespace jax_fabric::local
