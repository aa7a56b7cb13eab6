#ifndef JAX_FABRIC_ENGINE_SCATTER_H_
#define JAX_FABRIC_ENGINE_SCATTER_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "csrc/base/clock.h"
#include "csrc/base/status.h"
#include "csrc/engine/memory.h"
#include "csrc/engine/requests.h"
#include "csrc/engine/worker_callback.h"
#include "csrc/engine/write_grant.h"

namespace jax_fabric {

// One write of a scatter. `immediate` is an id that the *receiver* handed out. It arrives once, unless the entry's
// declared maximum exceeds what one write can carry (DomainGroup::ScatterImmediates).
struct ScatterEntry {
  PeerHandle peer = 0;
  const void* source = nullptr;  // inside `source_memory`; may be null when every write has length 0
  RegisteredMemory source_memory;
  const RemoteMemory* target = nullptr;  // must outlive the prepared scatter
  uint64_t target_offset = 0;
  uint64_t length = 0;  // bytes
  uint32_t immediate = 0;
  uint64_t max_length = 0;  // of any later SetLength; 0: what `length` needs in parts is enough
};

// A scatter whose plan is made once: posting again allocates nothing. One post at a time.
//
// A failed entry does not hold back the others: every peer that can be reached is written to.
class PreparedScatter {
 public:
  // To be destroyed before the engine. While writes of an expired post are still in flight this is allowed, too.
  virtual ~PreparedScatter() = default;
  // Whether it can be posted: no post is under way, and none that expired is in flight.
  virtual bool idle() const = 0;
  // While idle only.
  virtual void SetLength(size_t entry, uint64_t length) = 0;
  // `callback` when all writes are locally complete, or with the first error; then the scatter may be posted again,
  // also from inside the callback. After kDeadlineExceeded it may be posted again only once the writes that are still
  // in flight have ended (kFailedPrecondition until then). When this returns an error, there is no callback.
  Status Post(Deadline deadline, WorkerCallback callback) { return Post(deadline, callback, std::nullopt); }
  // Under a grant (RequestOptions::grant), which may be another one with each post.
  virtual Status Post(Deadline deadline, WorkerCallback callback, const std::optional<WriteGrant>& grant) = 0;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_SCATTER_H_
