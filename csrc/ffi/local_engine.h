// What one Fabric owns in this process: the transfer engine, a group and two threads for each local device, and the
// local ranks of its expert-parallel contexts.
#ifndef JAX_FABRIC_FFI_LOCAL_ENGINE_H_
#define JAX_FABRIC_FFI_LOCAL_ENGINE_H_

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/serial_executor.h"
#include "csrc/base/status.h"
#include "csrc/engine/transfer_engine.h"
#include "csrc/ffi/domain_choice.h"
#include "csrc/ffi/gpu_platform.h"
#include "csrc/moe/moe_config.h"
#include "csrc/moe/rank_context.h"

namespace jax_fabric::ffi_layer {

class LocalEngine {
 public:
  struct Device {
    DomainGroup* group = nullptr;
    // Receive kernels that no XLA thread was there to run.
    std::unique_ptr<SerialExecutor> kernels;
    // Fulfils promises, and with them runs whatever XLA has waiting for them: never mixed with the kernels, which
    // other ranks wait for.
    std::unique_ptr<SerialExecutor> completions;
    std::optional<GpuOptions> gpu;  // if it is one
    bool through_nic = false;       // to peers
  };

  // worker_threads 0: as JAX_FABRIC_WORKERS says, by default by the number of cores. Without a key everybody who
  // reaches the engine is believed.
  static Result<std::unique_ptr<LocalEngine>> Create(int worker_threads, std::shared_ptr<const FabricKey> key);
  ~LocalEngine();

  // A device, with its transport; returns its index. `gpu`: if it is one. `cpus`: where its threads and its memory are
  // to be; none: anywhere. A worker that exists already stays where it is.
  Result<size_t> AddGroup(const std::string& name, DomainChoice choice, std::optional<GpuOptions> gpu,
                          const std::vector<int>& cpus);
  Device& device(size_t index) { return devices_[index]; }

  // A local rank of the context with this handle; `ordinal` is how XLA numbers the device.
  Result<moe::RankContext*> AddMoeContext(size_t device, const moe::MoeConfig& config, int64_t handle, int32_t ordinal);
  // All local ranks of a context end, so that others may take their place under the same handle. An error: something
  // still uses them at the deadline; they stay closed, and only Close is left.
  Status CloseMoeContexts(int64_t handle, int64_t timeout_us);
  // Of any context, or null.
  const Error* FirstError() const;
  // Of any context, each once (RankContext::TakeRefusal).
  std::optional<Error> TakeRefusal();

  // Local, bounded, idempotent. False: something of the engine was still busy at the deadline and is left behind.
  // In a forked child it does nothing.
  bool Close(int64_t timeout_us);

 private:
  LocalEngine() : process_(getpid()) {}
  Result<std::unique_ptr<moe::RankContext>> MakeContext(const Device& device, const moe::MoeConfig& config,
                                                        const moe::RankContext* predecessor);
  // Leaves everything where it is, for ever.
  void Abandon();

  const pid_t process_;
  std::unique_ptr<TransferEngine> engine_;
  std::vector<Device> devices_;
  std::vector<int64_t> handles_;
  std::vector<std::unique_ptr<moe::RankContext>> contexts_;
  bool closed_ = false;
};

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_LOCAL_ENGINE_H_
