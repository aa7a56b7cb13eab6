// The thread that stands in for a device: polls what its kernels say, for all channels and watchers of the device. It
// makes no call into CUDA, which might wait for a kernel that waits for it.
#ifndef JAX_FABRIC_MOE_HOST_PROXY_H_
#define JAX_FABRIC_MOE_HOST_PROXY_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/idle_policy.h"
#include "csrc/engine/watcher.h"
#include "csrc/moe/proxied_channel.h"

namespace jax_fabric::moe {

class HostProxy {
 public:
  // With IdleMode::kSleep it pauses 50 us between looks; otherwise it spins and then yields, and pauses only when
  // nothing has happened for a second.
  static Result<std::unique_ptr<HostProxy>> Start(const std::string& name, IdlePolicy idle);
  ~HostProxy();
  HostProxy(const HostProxy&) = delete;
  HostProxy& operator=(const HostProxy&) = delete;

  // Any thread but the proxy's own. The channel is polled until Remove has returned.
  void Add(ProxiedChannel* channel);
  void Remove(ProxiedChannel* channel);
  WatcherSet& watchers() { return watchers_; }

 private:
  using List = std::vector<ProxiedChannel*>;

  explicit HostProxy(IdlePolicy idle);
  void Run();
  void Change(const std::function<void(List&)>& change);
  // Nothing was to do for `idle_us`; `urgent`: kernels may wait for this thread.
  void Idle(bool urgent, int64_t idle_us);

  const IdlePolicy idle_;
  WatcherSet watchers_;
  std::mutex mutex_;  // of changes
  // The list that is polled; seq_cst in Change and in Run, as sweeps_: their order between the two matters.
  std::atomic<const List*> channels_;
  std::unique_ptr<const List> owned_;
  // Sweeps begun: who sees two more, after a change, knows that none uses an older list. A sweep waits for nothing.
  std::atomic<uint64_t> sweeps_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_HOST_PROXY_H_
