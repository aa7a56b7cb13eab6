// RawVerbs: as little of libibverbs as writes need: one reliable connection, chains of four writes of which the last
// one reports, as the connectx domain posts them.
#ifndef JAX_FABRIC_BENCHMARKS_RAW_VERBS_H_
#define JAX_FABRIC_BENCHMARKS_RAW_VERBS_H_

#include <infiniband/verbs.h>

#include <memory>
#include <span>
#include <string>

#include "csrc/benchmarks/contender.h"

namespace jax_fabric::benchmarks {

class RawVerbs final : public Contender {
 public:
  // `memory` is the source at the writer's end, the target at the other.
  static Result<std::unique_ptr<RawVerbs>> Create(const std::string& device, std::span<std::byte> memory);
  ~RawVerbs() override;

  std::string name() const override { return "raw verbs"; }
  Result<Introduction> Introduce() override;
  Status Connect(const Introduction& target) override { return Join(target); }
  Status Accept(const Introduction& writer) override;
  Status Write(const Batch& batch) override;
  void Poll() override;

 private:
  // What one end tells the other.
  struct Identity {
    ibv_gid gid;
    uint32_t queue_pair;
    uint32_t key;
    uint64_t address;
  };

  explicit RawVerbs(std::span<std::byte> memory) : memory_(memory) {}
  Status Open(const std::string& device);
  Status ChooseGid();
  Status Join(const Introduction& other);
  Status PostChain(const Batch& batch, size_t first, size_t count);
  Status PostReceive();

  const std::span<std::byte> memory_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_cq* queue_ = nullptr;
  ibv_qp* pair_ = nullptr;
  ibv_mr* region_ = nullptr;
  ibv_mtu mtu_ = IBV_MTU_1024;
  ibv_gid gid_ = {};
  uint8_t gid_index_ = 0;
  Identity remote_ = {};
};

}  // namespace jax_fabric::benchmarks

#endif  // JAX_FABRIC_BENCHMARKS_RAW_VERBS_H_
