// ShardedOperation: contiguous writes, each cut into parts over the NICs: single writes, scatters, barriers.
#ifndef JAX_FABRIC_ENGINE_SHARDED_OPERATION_H_
#define JAX_FABRIC_ENGINE_SHARDED_OPERATION_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "csrc/engine/operation.h"
#include "csrc/engine/shard_plan.h"

namespace jax_fabric {

class ShardedOperation final : public Operation {
 public:
  // Everything about one write, looked up and checked.
  struct Write {
    Peer* peer = nullptr;
    const std::byte* source = nullptr;
    std::array<uint64_t, kMaxNics> local_keys{};
    std::array<uint64_t, kMaxNics> remote_addresses{};  // of the first byte to write
    std::array<uint64_t, kMaxNics> remote_keys{};
    TransferPieces pieces;
    uint64_t length = 0;
    uint64_t max_length = 0;  // at least length
    std::optional<uint32_t> immediate;
    uint32_t nic_count = 1;
    uint32_t first_nic = 0;  // part i goes over NIC (first_nic + i) % nic_count
    Spread spread = Spread::kOneNic;
  };

  ShardedOperation() : Operation("write", OnFailure::kWithdraw) {}

  // Between runs. Reuses memory: a pooled operation of the same shape allocates nothing.
  void Reset(std::string_view verb, OnFailure on_failure);
  void Add(const Write& write);
  // Streams [first, first + count) belong to write number `index`.
  void SetLength(size_t index, uint64_t length);
  // The longest that the plan of this write has room for.
  uint64_t LongestOf(size_t index) const;
  size_t size() const { return first_streams_.size(); }

 protected:
  std::span<Stream> streams() override { return streams_; }
  PostResult Post(Domain& domain, Stream& stream, uint32_t room, uint32_t& posted) override;

 private:
  std::vector<Stream> streams_;
  std::vector<uint32_t> first_streams_;  // of each write
  std::vector<TransferPieces> pieces_;   // of the writes that have any
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_SHARDED_OPERATION_H_
