// Where threads run, and with that where the memory lies that they touch first.
#ifndef JAX_FABRIC_BASE_AFFINITY_H_
#define JAX_FABRIC_BASE_AFFINITY_H_

#include <sched.h>

#include <memory>
#include <span>

#include "csrc/base/status.h"

namespace jax_fabric {

// While it lives, the thread that made it runs on some cores only, and so do the threads that it starts, from their
// first instruction and for good. To be destroyed by the thread that made it.
class ScopedAffinity {
 public:
  // No cores: nothing changes. kInvalidArgument: none of them may be used by this process.
  static Result<std::unique_ptr<ScopedAffinity>> Pin(std::span<const int> cpus);
  ~ScopedAffinity();
  ScopedAffinity(const ScopedAffinity&) = delete;
  ScopedAffinity& operator=(const ScopedAffinity&) = delete;

 private:
  explicit ScopedAffinity(const cpu_set_t* before);

  cpu_set_t before_;
  const bool changed_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_AFFINITY_H_
