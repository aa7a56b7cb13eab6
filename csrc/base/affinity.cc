#include "csrc/base/affinity.h"

#include <cerrno>
#include <cstring>

namespace jax_fabric {
namespace {

constexpr pid_t kThisThread = 0;

Result<cpu_set_t> ToSet(std::span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) {
      return MakeError(ErrorCode::kInvalidArgument, "cpus: {} is no core; they are 0 to {}", cpu, CPU_SETSIZE - 1);
    }
    CPU_SET(cpu, &set);
  }
  return set;
}

}  // namespace

ScopedAffinity::ScopedAffinity(const cpu_set_t* before)
    : before_(before == nullptr ? cpu_set_t{} : *before), changed_(before != nullptr) {}

Result<std::unique_ptr<ScopedAffinity>> ScopedAffinity::Pin(std::span<const int> cpus) {
  if (cpus.empty()) return std::unique_ptr<ScopedAffinity>(new ScopedAffinity(nullptr));
  JF_ASSIGN_OR_RETURN(const cpu_set_t wanted, ToSet(cpus));
  cpu_set_t before;
  if (sched_getaffinity(kThisThread, sizeof before, &before) != 0) {
    return MakeError(ErrorCode::kUnavailable, "cpus: the cores of this thread cannot be read: {}",
                     std::strerror(errno));
  }
  if (sched_setaffinity(kThisThread, sizeof wanted, &wanted) != 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "cpus={}: {}: give cores that this process may use (/proc/self/status, Cpus_allowed_list)",
                     fmt::format("[{}]", fmt::join(cpus, ", ")), std::strerror(errno));
  }
  return std::unique_ptr<ScopedAffinity>(new ScopedAffinity(&before));
}

ScopedAffinity::~ScopedAffinity() {
  if (changed_) sched_setaffinity(kThisThread, sizeof before_, &before_);
}

}  // namespace jax_fabric
