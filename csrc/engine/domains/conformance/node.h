// A domain with its memory and whoever drives it, as the suite sees it: in this thread, in a thread of its own, or in
// a process of its own. Addresses are those of the node's process; tests only do arithmetic on them.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_NODE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_NODE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric::conformance {

// Requests were posted in order until one was not: `last` is kPosted if all were.
struct PostOutcome {
  uint64_t posted = 0;
  PostResult last = PostResult::kPosted;
  std::string error;  // last_error() after a kRejected
};

inline constexpr uint64_t kNoMismatch = ~uint64_t{0};

class Node {
 public:
  virtual ~Node() = default;

  virtual Bytes Address() = 0;
  virtual DomainLimits Limits() = 0;
  virtual Result<PeerId> AddPeer(ByteView address) = 0;
  virtual PeerState State(PeerId peer) = 0;
  virtual void RemovePeer(PeerId peer) = 0;
  virtual std::string LastError() = 0;

  virtual Result<uint64_t> Allocate(uint64_t length) = 0;
  virtual Result<MemoryRegion> Register(uint64_t address, uint64_t length, Access access) = 0;
  virtual Status Deregister(const MemoryRegion& region) = 0;

  virtual PostOutcome PostWrites(std::span<const WriteRequest> requests) = 0;
  virtual PostOutcome PostSends(std::span<const SendRequest> requests) = 0;
  virtual PostOutcome PostReceives(std::span<const ReceiveRequest> requests) = 0;
  // Everything that came since the last call. Nodes with a driver of their own go on polling in between.
  virtual std::vector<Completion> Poll() = 0;

  // Bytes that depend on the seed and the position.
  virtual void Fill(uint64_t address, uint64_t length, uint64_t seed) = 0;
  virtual void FillByte(uint64_t address, uint64_t length, uint8_t value) = 0;
  // Offset of the first byte that is not what Fill or FillByte with the same arguments wrote, or kNoMismatch.
  virtual uint64_t Check(uint64_t address, uint64_t length, uint64_t seed) = 0;
  virtual uint64_t CheckByte(uint64_t address, uint64_t length, uint8_t value) = 0;
  // 0 where the memory cannot be mapped.
  virtual uint64_t MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) = 0;

  // Ends the domain without a word to its peers: destroys it, or kills its process. The node is dead afterwards.
  virtual void Kill() = 0;
  // The domain, where it lives in the caller's thread; else null.
  virtual Domain* domain() { return nullptr; }
};

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_NODE_H_
