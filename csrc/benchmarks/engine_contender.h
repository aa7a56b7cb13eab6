// EngineContender: requests to a DomainGroup. The engine has no threads of its own here; whoever waits steps it.
#ifndef JAX_FABRIC_BENCHMARKS_ENGINE_CONTENDER_H_
#define JAX_FABRIC_BENCHMARKS_ENGINE_CONTENDER_H_

#include <memory>
#include <span>
#include <string>

#include "csrc/benchmarks/contender.h"
#include "csrc/engine/transfer_engine.h"

namespace jax_fabric::benchmarks {

inline constexpr uint64_t kSingleWriteBytes = 1 << 20;

class EngineContender final : public Contender {
 public:
  static Result<std::unique_ptr<EngineContender>> Create(std::unique_ptr<Domain> domain, std::span<std::byte> memory);

  std::string name() const override { return "engine"; }
  Result<Introduction> Introduce() override;
  Status Connect(const Introduction& target) override;
  // Single writes from kSingleWriteBytes on; below, one paged write, with the window that the engine keeps.
  Status Write(const Batch& batch) override;
  void Poll() override { engine_->Step(); }

 private:
  explicit EngineContender(std::span<std::byte> memory) : memory_(memory) {}
  Status WritePages(const Batch& batch);
  Status WriteSingly(const Batch& batch);
  Status Await(const Transfer& transfer);

  const std::span<std::byte> memory_;
  std::unique_ptr<TransferEngine> engine_;
  DomainGroup* group_ = nullptr;
  RegisteredMemory region_;
  RemoteMemory target_;
  uint32_t immediate_ = 0;
  PeerHandle peer_ = 0;
};

}  // namespace jax_fabric::benchmarks

#endif  // JAX_FABRIC_BENCHMARKS_ENGINE_CONTENDER_H_
