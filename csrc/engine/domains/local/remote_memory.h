// A peer process's shared memory as it is mapped here.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_REMOTE_MEMORY_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_REMOTE_MEMORY_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/domains/local/descriptor_client.h"
#include "csrc/engine/domains/local/local_address.h"
#include "csrc/engine/domains/local/mailbox.h"

namespace jax_fabric::local {

class RemoteMemory {
 public:
  // The mailbox must outlive this.
  RemoteMemory(const LocalAddress& address, const Mailbox& mailbox, std::shared_ptr<const FabricKey> key);

  // Driving thread. The mapping of that memory; null while its descriptor is on the way: call again. `key` is of a
  // region inside, and what the peer will want to see.
  Result<const MemoryMapping*> Find(uint64_t memory_id, uint64_t key);

  // Any thread; blocks up to the deadline. The mapping stays until this object goes.
  Result<const MemoryMapping*> FindAndKeep(uint64_t memory_id, uint64_t key, Deadline deadline);

 private:
  struct Entry {
    uint64_t memory_id = 0;
    std::shared_ptr<const MemoryMapping> mapping;
    bool keep = false;
  };

  Result<std::shared_ptr<const MemoryMapping>> Insert(ReceivedDescriptors received, uint64_t memory_id, bool keep);
  // Unmaps what the peer has deregistered, so that a peer which allocates anew again and again does not fill us up.
  void DropUnregistered();
  bool IsRegistered(uint64_t memory_id) const;
  std::shared_ptr<const MemoryMapping> Lookup(uint64_t memory_id, bool keep);
  DescriptorRequest RequestFor(uint64_t key) const;

  const LocalAddress address_;
  const Mailbox& mailbox_;
  const std::shared_ptr<const FabricKey> key_;
  // Of the driving thread: what it has used, without a lock.
  std::vector<Entry> cache_;
  std::optional<DescriptorClient> fetch_;
  uint64_t fetch_memory_id_ = 0;

  std::mutex mutex_;
  std::vector<Entry> entries_;  // guarded by mutex_
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_REMOTE_MEMORY_H_
