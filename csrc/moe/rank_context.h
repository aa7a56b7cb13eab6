// One rank of an expert-parallel context, whatever device it runs on.
#ifndef JAX_FABRIC_MOE_RANK_CONTEXT_H_
#define JAX_FABRIC_MOE_RANK_CONTEXT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric::moe {

enum class Platform : uint8_t { kHost, kCuda };

class RankContext {
 public:
  virtual ~RankContext() = default;

  virtual Platform platform() const = 0;
  // What every other rank needs, as bytes for the bootstrap.
  virtual Result<Bytes> Introduction() const = 0;
  // `introductions` of all ranks in rank order; those of absent ranks are not read. Returns when all peers are
  // reachable, or with an error that names the rank and what does not fit. Collective: no rank may submit before
  // Connect has returned on all of them.
  virtual Status Connect(std::span<const Bytes> introductions, Deadline deadline) = 0;
  // How many peers are reached by stores into their memory, not by writes; this rank counts.
  virtual int32_t mapped_peers() const = 0;
  // Bytes that it has allocated, on its device and in host memory together.
  virtual int64_t memory_bytes() const = 0;
  // Ranks whose peers are lost: dead, or closed. None before Connect, which is what knows the peers.
  virtual std::vector<int32_t> LostRanks() const = 0;
  // From any thread: the error that ended one of the channels, or null. Valid as long as the context.
  virtual const Error* error() const = 0;
  // From any thread: that a call since the last time was none, and has left its channel as it was. Only where calls
  // cannot raise that themselves.
  virtual std::optional<Error> TakeRefusal() { return {}; }
  // Every operation ends with kCancelled. Local and bounded; true when nothing refers to the context any more, but for
  // the stores of mapped peers: contexts of one process are all closed before the first of them is destroyed.
  virtual bool Close(Deadline deadline) = 0;
  // After Close, in the place of destruction. False: it may be destroyed. True: it has given back what it could, and
  // what is left must stay for ever, since recorded programs look at it.
  virtual bool Retire() { return false; }
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_RANK_CONTEXT_H_
