// PagedOperation: many writes of one size, spread over the NICs page by page.
#ifndef JAX_FABRIC_ENGINE_PAGED_OPERATION_H_
#define JAX_FABRIC_ENGINE_PAGED_OPERATION_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "csrc/engine/operation.h"
#include "csrc/engine/requests.h"

namespace jax_fabric {

class PagedOperation final : public Operation {
 public:
  struct Plan {
    Peer* peer = nullptr;
    uint32_t nic_count = 1;
    const std::byte* source = nullptr;  // of page index 0
    std::array<uint64_t, kMaxNics> local_keys{};
    std::array<uint64_t, kMaxNics> remote_addresses{};  // of page index 0
    std::array<uint64_t, kMaxNics> remote_keys{};
    TransferPieces pieces;
    uint64_t page_length = 0;
    uint64_t source_stride = 0;
    uint64_t target_stride = 0;
    std::span<const uint64_t> source_indices;
    std::span<const uint64_t> target_indices;  // as many
    std::optional<uint32_t> immediate;
  };

  PagedOperation() : Operation("paged write", OnFailure::kWithdraw) {}

  // Copies the indices, into memory that it keeps for the next plan.
  void SetPlan(const Plan& plan);

 protected:
  std::span<Stream> streams() override { return {streams_.data(), stream_count_}; }
  PostResult Post(Domain& domain, Stream& stream, uint32_t room, uint32_t& posted) override;

 private:
  PostResult PostPage(Domain& domain, const Stream& stream, uint64_t page);

  std::array<Stream, kMaxNics> streams_;
  size_t stream_count_ = 0;
  TransferPieces pieces_;
  std::vector<uint64_t> source_offsets_;
  std::vector<uint64_t> target_offsets_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_PAGED_OPERATION_H_
