#ifndef JAX_FABRIC_FFI_HOST_HOST_ENGINE_H_
#define JAX_FABRIC_FFI_HOST_HOST_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/transfer_engine.h"
#include "csrc/engine/wait_hub.h"
#include "csrc/ffi/domain_choice.h"
#include "csrc/ffi/host/python_callback.h"

namespace jax_fabric::ffi_layer {

// The engine behind the host API. Everything in Python that stands for a part of it shares it, so that garbage may be
// collected in any order: the engine goes with the last of them.
class HostEngine {
 public:
  // worker_threads 0: as JAX_FABRIC_WORKERS says, by default by the number of cores. Without a key everybody who
  // reaches the engine is believed.
  static Result<std::shared_ptr<HostEngine>> Create(int worker_threads, std::shared_ptr<const FabricKey> key);
  // On a clock and with a pump of somebody's, which the engine keeps: without threads, for the one thread that made it.
  static Result<std::shared_ptr<HostEngine>> CreateWith(EngineOptions options, std::shared_ptr<const void> owner);

  // `cpus`: where its worker and its memory are to be; none: anywhere. A worker that exists already stays where it is.
  Result<DomainGroup*> AddGroup(const std::string& name, const DomainChoice& choice, const std::vector<int>& cpus);
  const Clock& clock() const { return hub_.clock(); }
  TransferEngine& engine() { return *engine_; }
  // Where Python waits for what the worker reports to it.
  WaitHub& hub() { return hub_; }

  // A forked child has none of the engine's threads: nothing may be asked there, and nothing is freed.
  bool InForkedChild() const;
  Status CheckProcess() const;

  // The callback lives as long as the engine does, and is cleared when that closes.
  void ClearAtClose(const std::shared_ptr<PythonCallback>& callback);

  // See TransferEngine::Close. Without the GIL.
  Status Close(int64_t timeout_us);
  // For the interpreter's exit, without the GIL: closes every engine; callbacks do not run any more afterwards. False:
  // something was left as it is, because a callback does not return, or because it belongs to this process's parent.
  static bool CloseAll(int64_t timeout_us);

 private:
  friend struct HostEngineDeleter;
  HostEngine(const EngineOptions& options, std::shared_ptr<const void> owner);
  ~HostEngine() = default;
  void Leak();
  // By whoever drops the last reference, which may be a thread of the engine itself.
  static void Retire(HostEngine* self);

  const uint64_t fork_generation_;
  const std::shared_ptr<const void> owner_;  // of clock and pump; null: the machine's clock, and threads
  const std::thread::id thread_;             // where there is an owner, all that may use the engine
  WaitHub hub_;
  std::unique_ptr<TransferEngine> engine_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<PythonCallback>> callbacks_;
  std::atomic<bool> closed_{false};  // release in Close, acquire in Retire
};

// A group as Python holds it.
struct HostGroup {
  std::shared_ptr<HostEngine> engine;
  DomainGroup* group = nullptr;
};

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_HOST_HOST_ENGINE_H_
