// One rank of an expert-parallel context: its slots, its peers, its channels.
#ifndef JAX_FABRIC_MOE_CONTEXT_H_
#define JAX_FABRIC_MOE_CONTEXT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "csrc/base/strand.h"
#include "csrc/engine/domain_group.h"
#include "csrc/moe/channel.h"
#include "csrc/moe/moe_config.h"
#include "csrc/moe/peer_connector.h"
#include "csrc/moe/rank_context.h"

namespace jax_fabric::moe {

class Context final : public RankContext {
 public:
  // Allocates and registers the slots (MemoryBytes of the configuration). Kernels run on the threads that submit
  // operations and on `executor`; both pointers outlive the context.
  static Result<std::unique_ptr<Context>> Create(const MoeConfig& config, DomainGroup* group, Executor* executor);

  Platform platform() const override { return Platform::kHost; }
  Result<Bytes> Introduction() const override { return connector_.Introduction({}); }
  Status Connect(std::span<const Bytes> introductions, Deadline deadline) override;
  int32_t mapped_peers() const override { return connector_.mapped_peers(); }
  int64_t memory_bytes() const override { return connector_.host_bytes(); }
  std::vector<int32_t> LostRanks() const override;
  const Error* error() const override;
  bool Close(Deadline deadline) override;

  const MoeConfig& config() const { return config_; }
  // Null before Connect, or when there is no such channel.
  Channel* channel(int32_t index);
  // The memory that peers write into (MoeConfig says what lies where), for tests.
  std::span<std::byte> slots() const { return connector_.memory(); }
  // Its failure notices (notice_board.h), for tests.
  std::span<std::byte> notices() const { return connector_.notices(); }

 private:
  Context(const MoeConfig& config, DomainGroup* group, Executor* executor);

  const MoeConfig config_;
  DomainGroup* const group_;
  Strand strand_;
  PeerConnector connector_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_CONTEXT_H_
