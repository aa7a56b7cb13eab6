// One rank of an expert-parallel context: its slots, its peers, its channels.
#ifndef JAX_FABRIC_MOE_CONTEXT_H_
#define JAX_FABRIC_MOE_CONTEXT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "csrc/base/strand.h"
#include "csrc/engine/domain_group.h"
#include "csrc/engine/domains/local/shared_memory.h"
#include "csrc/moe/channel.h"
#include "csrc/moe/moe_config.h"
#include "csrc/moe/peer_table.h"

namespace jax_fabric::moe {

class Context {
 public:
  // Allocates and registers the slots (MemoryBytes of the configuration). Kernels run on the threads that submit
  // operations and on `executor`; both pointers outlive the context.
  static Result<std::unique_ptr<Context>> Create(const MoeConfig& config, DomainGroup* group, Executor* executor);
  ~Context();

  // What every other rank needs, as bytes for the bootstrap.
  Result<Bytes> Introduction() const;
  // `introductions` of all ranks in rank order; those of absent ranks are not read. Returns when all peers are
  // reachable, or with an error that names the rank and what does not fit. Collective: no rank may submit before
  // Connect has returned on all of them.
  Status Connect(std::span<const Bytes> introductions, Deadline deadline);

  const MoeConfig& config() const { return config_; }
  // Null before Connect, or when there is no such channel.
  Channel* channel(int32_t index);
  // How many peers are reached by stores into their memory, not by writes; this rank counts.
  int32_t mapped_peers() const;
  // The memory that peers write into (MoeConfig says what lies where), for tests.
  std::span<std::byte> slots() const { return {static_cast<std::byte*>(memory_.data()), memory_.size()}; }

  // Ranks whose peers are lost: dead, or closed. None before Connect, which is what knows the peers.
  std::vector<int32_t> LostRanks() const;

  // From any thread: the error that ended one of the channels, or null.
  const Error* error() const;

  // Every operation ends with kCancelled. Local and bounded; true when nothing refers to the context any more, but for
  // the stores of mapped peers: contexts of one process are all closed before the first of them is destroyed.
  bool Close(Deadline deadline);

 private:
  Context(const MoeConfig& config, DomainGroup* group, Executor* executor);
  Status AddPeer(int32_t rank, ByteView bytes);
  Status AllocateStaging();

  const MoeConfig config_;
  DomainGroup* const group_;
  Strand strand_;
  SharedMemory memory_;
  SharedMemory staging_;
  PeerTable table_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_CONTEXT_H_
