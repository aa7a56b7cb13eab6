// TransferEngine: what a process has of the fabric: groups, the workers that drive them, callbacks and watchers.
#ifndef JAX_FABRIC_ENGINE_TRANSFER_ENGINE_H_
#define JAX_FABRIC_ENGINE_TRANSFER_ENGINE_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/serial_executor.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain_group.h"
#include "csrc/engine/engine_options.h"
#include "csrc/engine/group_options.h"
#include "csrc/engine/wait_hub.h"
#include "csrc/engine/watcher.h"
#include "csrc/engine/worker.h"
#include "csrc/engine/worker_thread.h"

namespace jax_fabric {

// One a process is usual, any number is fine.
class TransferEngine {
 public:
  static Result<std::unique_ptr<TransferEngine>> Create(EngineOptions options);
  // Closes, within five seconds. Groups, transfers, scatters and watchers must not be used afterwards.
  ~TransferEngine();

  // The group lives as long as the engine.
  Result<DomainGroup*> AddGroup(GroupOptions options);
  // To be dropped before the engine. The callback runs on the engine's watcher thread. `given`: as of Watcher::Watch.
  Result<std::unique_ptr<Watcher>> Watch(uint64_t initial, Watcher::Callback callback,
                                         std::shared_ptr<uint64_t> given = nullptr);
  // Where users' callbacks run.
  Executor& callback_executor() { return *callbacks_; }
  const Clock& clock() const { return *options_.clock; }
  // Of its fabric's secret, or null; domains want it, too.
  const std::shared_ptr<const FabricKey>& key() const { return options_.key; }

  // Without threads only: one round of everything. Returns whether anything happened.
  bool Step();

  // Local, bounded and idempotent; not from a callback. All that is outstanding ends with kCancelled, peers are removed
  // and told nothing. kDeadlineExceeded when a callback blocks (call again to go on), or when a NIC did not give back
  // what was posted (then the engine is closed nevertheless).
  Status Close(Deadline deadline);

 private:
  explicit TransferEngine(EngineOptions options);

  Status CheckNotOnOwnThread() const;
  Result<Worker*> WorkerForNextGroup();
  Status StopThreads(Deadline deadline);
  void WatchLoop();
  int64_t MicrosecondsLeft(Deadline deadline) const;

  const EngineOptions options_;
  WaitHub hub_;
  InlineExecutor inline_executor_;
  std::unique_ptr<SerialExecutor> callback_thread_;
  Executor* callbacks_ = &inline_executor_;

  std::mutex close_mutex_;  // one Close at a time
  std::mutex mutex_;        // of the lists below, until closing_ is set: then they stay as they are
  bool closing_ = false;
  bool closed_ = false;                           // under close_mutex_
  std::vector<std::unique_ptr<Worker>> workers_;  // outlive the groups, which wake them
  std::vector<std::unique_ptr<DomainGroup>> groups_;
  std::vector<std::unique_ptr<WorkerThread>> worker_threads_;

  PollerSet watchers_;
  std::unique_ptr<SerialExecutor> watcher_thread_;
  Task watch_task_;
  std::atomic<bool> stop_watching_{false};  // release in Close, acquire in WatchLoop
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_TRANSFER_ENGINE_H_
