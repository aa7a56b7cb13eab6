// RawFabric: as little of libfabric as writes need. What the efa domain asks of a provider is asked here, too, and what
// makes it faster is done here, too.
#ifndef JAX_FABRIC_BENCHMARKS_RAW_FABRIC_H_
#define JAX_FABRIC_BENCHMARKS_RAW_FABRIC_H_

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_rma.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "csrc/benchmarks/contender.h"

namespace jax_fabric::benchmarks {

class RawFabric final : public Contender {
 public:
  // `memory` is the source at the writer's end, the target at the other.
  static Result<std::unique_ptr<RawFabric>> Create(const std::string& provider, std::span<std::byte> memory);
  ~RawFabric() override;

  std::string name() const override { return "raw libfabric"; }
  Result<Introduction> Introduce() override;
  Status Connect(const Introduction& target) override;
  Status Write(const Batch& batch) override;
  void Poll() override;

 private:
  // Of the target's memory, as its writer names it.
  struct Remote {
    uint64_t address = 0;
    uint64_t key = 0;
  };

  explicit RawFabric(std::span<std::byte> memory) : memory_(memory) {}
  Status Open(const std::string& provider);
  struct Operation {
    fi_context2 provider = {};
    bool immediate_follows = false;
  };
  Status PostWrites(const Batch& batch, size_t& posted, size_t end);
  // The immediates of payloads that have arrived.
  Status PostImmediates();
  // How many have completed.
  Result<size_t> Read();

  const std::span<std::byte> memory_;
  fi_info* info_ = nullptr;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_cq* send_queue_ = nullptr;
  fid_cq* receive_queue_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  fid_mr* region_ = nullptr;
  fi_addr_t target_ = FI_ADDR_NOTAVAIL;
  Remote remote_;
  std::vector<Operation> operations_;
  std::vector<Operation*> free_;
  std::vector<Operation*> arrived_;
  // Asking again what the provider has just refused delays whoever makes room.
  uint32_t reads_before_posting_ = 0;
  uint64_t immediates_ = 0;  // that have come to the target: what its users look at, too
};

}  // namespace jax_fabric::benchmarks

#endif  // JAX_FABRIC_BENCHMARKS_RAW_FABRIC_H_
