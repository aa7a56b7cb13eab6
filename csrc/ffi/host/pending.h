#ifndef JAX_FABRIC_FFI_HOST_PENDING_H_
#define JAX_FABRIC_FFI_HOST_PENDING_H_

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <vector>

#include "csrc/base/executor.h"
#include "csrc/base/status.h"
#include "csrc/engine/requests.h"
#include "csrc/engine/transfer.h"
#include "csrc/engine/worker_callback.h"
#include "csrc/ffi/host/host_engine.h"
#include "csrc/ffi/host/host_region.h"
#include "csrc/ffi/host/python_callback.h"

namespace jax_fabric::ffi_layer {

// Something that the worker will end, once: what Python waits for and hangs callbacks on. The worker takes no lock and
// no GIL for it.
class Pending : public std::enable_shared_from_this<Pending> {
 public:
  explicit Pending(std::shared_ptr<HostEngine> engine) : engine_(std::move(engine)) {}
  ~Pending();

  // For the one request whose end this is. Owns a reference until it is called, or given to Forget.
  WorkerCallback MakeCallback();
  static void Forget(const WorkerCallback& callback);
  // For RequestOptions::keep_alive: keeps the memory for as long as the engine may read it.
  std::shared_ptr<const void> MakeKeepAlive(std::vector<std::shared_ptr<HostRegion>> sources);
  // The same for what ends with the request, before that is submitted.
  void Keep(std::shared_ptr<const void> object) { kept_ = std::move(object); }
  // The request as the engine knows it, so that it can be cancelled. Once, after it was submitted.
  void SetTransfer(Transfer transfer);

  const Clock& clock() const { return engine_->clock(); }                    // that its deadlines are on
  bool done() const { return done_.load(std::memory_order_seq_cst); }        // partner: Finish
  bool drained() const { return drained_.load(std::memory_order_seq_cst); }  // partner: InFlight
  const Status& result() const { return result_; }                           // once done
  void Cancel();
  // Without the GIL. Returns whether it is so.
  bool WaitDone(Deadline deadline) const;
  bool WaitDrained(Deadline deadline) const;
  // function(argument) on the callback thread, after the end. With the GIL.
  void AddDoneCallback(const nanobind::object& function, const nanobind::object& argument);

 private:
  struct InFlight;
  struct Listener;

  void Finish(const Error* error);
  void ReleaseTransfer();

  const std::shared_ptr<HostEngine> engine_;
  std::shared_ptr<const void> kept_;  // Finish drops it
  Status result_;
  std::atomic<bool> done_{false};
  std::atomic<bool> drained_{true};  // false while an InFlight exists
  // A stack; kEnded once everybody was told. Release by whoever pushes, acquire in Finish.
  std::atomic<Listener*> listeners_{nullptr};

  // Those that still need transfer_: SetTransfer, Finish, and each Cancel that found it above 0. The last one drops it,
  // so that handles that are done with take nothing from the engine's pool. Acquire and release.
  std::atomic<int> transfer_users_{2};
  Transfer transfer_;
};

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_HOST_PENDING_H_
