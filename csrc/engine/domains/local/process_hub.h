// What the local domains of one process share: who they are, how they find each other, and the thread that serves
// file descriptors to other processes. The thread runs while there is a domain.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_PROCESS_HUB_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_PROCESS_HUB_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "csrc/base/fabric_key.h"
#include "csrc/base/status.h"
#include "csrc/engine/domains/local/local_address.h"
#include "csrc/engine/domains/local/mailbox.h"
#include "csrc/engine/domains/local/region_table.h"

namespace jax_fabric::local {

class DescriptorServer;

// The part of a domain that others reach: it lives until the last of them lets go.
struct Endpoint {
  std::shared_ptr<Mailbox> mailbox;
  std::unique_ptr<RegionTable> regions;
  std::shared_ptr<const FabricKey> key;  // whoever wants to connect knows it; null: needs not
};

// Thread-safe.
class ProcessHub {
 public:
  // Of the calling process. A child of fork gets one of its own; its parent's domains are not in it.
  static Result<ProcessHub*> Get();

  ProcessHub(const ProcessIdentity& process, uint64_t process_id);
  ~ProcessHub();

  const ProcessIdentity& process() const { return process_; }
  // Distinguishes this process from a fork of it.
  uint64_t process_id() const { return process_id_; }

  // Makes the endpoint reachable and returns its address.
  Result<LocalAddress> Register(std::shared_ptr<Endpoint> endpoint);
  // After this nobody new finds it. Wakes all domains of the process, so that they notice that it is closed.
  void Unregister(uint64_t incarnation);

  // Null when there is no such domain in this process (any more).
  std::shared_ptr<Endpoint> Find(uint64_t incarnation) const;

 private:
  const ProcessIdentity process_;
  const uint64_t process_id_;
  mutable std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Endpoint>> endpoints_;  // guarded by mutex_
  // Serialises start and stop of the server, which take longer than mutex_ should be held.
  std::mutex server_mutex_;
  std::shared_ptr<DescriptorServer> server_;  // guarded by server_mutex_
  size_t server_users_ = 0;                   // guarded by server_mutex_
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_PROCESS_HUB_H_
