// Domain: one NIC, or the machine's own memory. The contract that every transport is held to; the conformance
// suite (csrc/engine/domains/conformance) checks it over all of them.
//
// Promises:
//  1. A posted write completes locally exactly once, with success or an error. Success means that the source may
//     be reused, and nothing more.
//  2. The receiver sees the immediate of a successful write exactly once, after that write's payload is in
//     memory; of a failed write at most once (its payload may be there wholly, partly or not at all). The engine
//     never retries such a write by itself.
//  3. Nothing about order, between writes or between immediates.
//  4. Post* may answer kAgain; it never blocks and never drops.
//  5. A zero-length write with an immediate is legal and carries a valid remote key.
//  6. Once a peer's state is kRemoved, nothing lands in this domain's memory any more that the peer sends over the
//     connection which it had then: it fails there, and the peer loses this domain. Whoever is added anew writes anew.
//     (Stores through MapRemote are not posted.)
//
// Threads: a Domain is driven by one thread (its worker). RegisterMemory, DeregisterMemory, address, limits,
// peer_path and MapRemote may be called from any thread; everything else only from the driving thread.
#ifndef JAX_FABRIC_ENGINE_DOMAIN_H_
#define JAX_FABRIC_ENGINE_DOMAIN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/status.h"

namespace jax_fabric {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

enum class DomainKind : uint8_t { kLocal = 1, kEfa = 2, kConnectX = 3, kSimulated = 4 };
enum class MemoryKind : uint8_t { kHost = 1, kCuda = 2 };

// Bit set. Remote write implies nothing about local use: a source needs no permission.
enum class Access : uint8_t { kLocalOnly = 0, kRemoteWrite = 1 };

// A peer as this domain numbers it: dense, never reused while the domain lives.
using PeerId = uint32_t;

enum class PeerState : uint8_t { kConnecting, kReady, kFailed, kRemoved };

struct DomainLimits {
  uint64_t max_write_bytes = 0;    // of one posted write; the engine splits above it
  uint64_t max_message_bytes = 0;  // of one send
  uint64_t max_region_bytes = 0;   // of one registration
  uint32_t max_outstanding = 0;    // posted and not yet completed, writes and sends together
  uint32_t max_receives = 0;       // posted receive buffers
};

// A registered range of this process. `remote_key` goes to peers inside a descriptor.
struct MemoryRegion {
  uint64_t address = 0;         // first byte, as this process sees it
  uint64_t length = 0;          // bytes
  uint64_t remote_address = 0;  // what peers put into WriteRequest::remote_address for the first byte
  uint64_t local_key = 0;
  uint64_t remote_key = 0;
  MemoryKind kind = MemoryKind::kHost;
};

struct WriteRequest {
  PeerId peer = 0;
  uint64_t context = 0;          // comes back in the completion
  const void* source = nullptr;  // may be null when length is 0
  uint64_t local_key = 0;        // of the region that contains source
  uint64_t length = 0;           // bytes
  uint64_t remote_address = 0;
  uint64_t remote_key = 0;
  uint64_t transfer_bytes = 0;  // of the paged transfer that it is a part of, or 0: a hint how to copy
  std::optional<uint32_t> immediate;
};

// Writes that differ in their offsets only. Page i goes from source + source_offsets[i * step] to remote_address +
// target_offsets[i * step]; each brings the immediate once.
struct PagesRequest {
  PeerId peer = 0;
  uint64_t context = 0;
  const std::byte* source = nullptr;
  uint64_t local_key = 0;
  uint64_t length = 0;  // of a page
  uint64_t remote_address = 0;
  uint64_t remote_key = 0;
  const uint64_t* source_offsets = nullptr;
  const uint64_t* target_offsets = nullptr;
  uint64_t step = 1;
  uint32_t count = 0;           // of pages that may be posted now, at least 1
  uint64_t transfer_bytes = 0;  // of all pages of the transfer: a hint how to copy
  std::optional<uint32_t> immediate;
};

struct SendRequest {
  PeerId peer = 0;
  uint64_t context = 0;
  const void* source = nullptr;  // the domain has copied or sent it when the completion comes
  uint64_t local_key = 0;
  uint64_t length = 0;
};

struct ReceiveRequest {
  uint64_t context = 0;
  void* target = nullptr;
  uint64_t local_key = 0;
  uint64_t length = 0;  // bytes there is room for
};

enum class PostResult : uint8_t {
  kPosted,    // exactly one completion will follow
  kAgain,     // full: poll completions, then post again; nothing was posted
  kRejected,  // will never work (unknown or failed peer, bad key, too long); last_error() says why; no completion
};

enum class CompletionKind : uint8_t {
  kWrite,      // a posted write is finished: context
  kSend,       // a posted send is finished: context
  kReceive,    // a message is in the receive buffer: context, peer, length
  kImmediate,  // a peer's write with an immediate is in memory: peer if known, immediate
  kPeerFault,  // a peer is lost: peer, code; every request to it completes with an error of its own
};

struct Completion {
  CompletionKind kind = CompletionKind::kWrite;
  ErrorCode code = ErrorCode::kOk;
  PeerId peer = kUnknownPeer;
  uint32_t immediate = 0;
  uint64_t context = 0;
  uint64_t length = 0;
  uint32_t count = 1;  // kWrite, kImmediate: it stands for that many equal ones

  static constexpr PeerId kUnknownPeer = 0xffffffffu;
};

class Domain {
 public:
  // Its peers lose it, then its registrations end.
  virtual ~Domain() = default;

  virtual DomainKind kind() const = 0;
  // For logs and errors: "local", "efa:rdmap0s6", "mlx5_0".
  virtual const std::string& name() const = 0;
  // Opaque bytes that a peer hands to AddPeer. Contains the incarnation: a restarted peer has another address.
  virtual ByteView address() const = 0;
  virtual const DomainLimits& limits() const = 0;

  virtual Result<MemoryRegion> RegisterMemory(void* address, uint64_t length, MemoryKind kind, Access access) = 0;
  // Fails with kFailedPrecondition while a posted request of this domain uses the region.
  virtual Status DeregisterMemory(const MemoryRegion& region) = 0;

  // Starts to connect; the state is kConnecting until it is kReady or kFailed (poll drives it). The same address
  // twice gives the same id.
  virtual Result<PeerId> AddPeer(ByteView address) = 0;
  virtual PeerState peer_state(PeerId peer) const = 0;
  // Everything posted to the peer completes with an error; then the state is kRemoved, at once or as soon as the peer
  // is not in the middle of a write any more.
  virtual void RemovePeer(PeerId peer) = 0;

  // How writes reach the peer, for users: "shared memory and process_vm_writev". Any thread.
  virtual std::string peer_path(PeerId peer) const = 0;

  virtual PostResult PostWrite(const WriteRequest& request) = 0;
  // The first pages as if PostWrite had posted one after the other, as many as the domain takes at once. kPosted: at
  // least one, and `posted` says how many; else as PostWrite of the first.
  virtual PostResult PostPages(const PagesRequest& request, uint32_t& posted);
  virtual PostResult PostSend(const SendRequest& request) = 0;
  virtual PostResult PostReceive(const ReceiveRequest& request) = 0;

  // Fills at most completions.size() entries; returns how many. Makes progress also when it returns 0.
  virtual size_t Poll(std::span<Completion> completions) = 0;

  // A file descriptor that becomes readable when Poll may have something to report, or -1 (then the worker only
  // spins and yields). ArmWait() must be called before sleeping; false means: poll again, something came. A worker that
  // sleeps polls every 100 ms all the same: what has more time than that, such as heartbeats, may go on in Poll.
  virtual int wait_fd() const = 0;
  virtual bool ArmWait() = 0;

  // Cause of the last kRejected, kPeerFault or error completion, for messages to users.
  virtual const std::string& last_error() const = 0;

  // Where the peer's registered memory is in this process's address space, or null when it cannot be reached by
  // loads and stores. Stores to it become visible to the peer no later than the immediate of a write posted
  // afterwards by the same thread, or by one that synchronises with it (release in PostWrite, acquire in the
  // peer's Poll).
  virtual void* MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) = 0;
};

inline PostResult Domain::PostPages(const PagesRequest& request, uint32_t& posted) {
  WriteRequest write;
  write.peer = request.peer;
  write.context = request.context;
  write.source = request.source + request.source_offsets[0];
  write.local_key = request.local_key;
  write.length = request.length;
  write.remote_address = request.remote_address + request.target_offsets[0];
  write.remote_key = request.remote_key;
  write.transfer_bytes = request.transfer_bytes;
  write.immediate = request.immediate;
  posted = 1;
  return PostWrite(write);
}

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_DOMAIN_H_
