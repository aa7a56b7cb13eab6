// DomainContender: writes posted to a Domain, nothing of the engine above it.
#ifndef JAX_FABRIC_BENCHMARKS_DOMAIN_CONTENDER_H_
#define JAX_FABRIC_BENCHMARKS_DOMAIN_CONTENDER_H_

#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "csrc/benchmarks/contender.h"

namespace jax_fabric::benchmarks {

class DomainContender final : public Contender {
 public:
  DomainContender(std::unique_ptr<Domain> domain, std::span<std::byte> memory)
      : domain_(std::move(domain)), memory_(memory) {}

  std::string name() const override { return "domain"; }
  Result<Introduction> Introduce() override;
  Status Connect(const Introduction& target) override;
  Status Write(const Batch& batch) override;
  void Poll() override;

 private:
  Result<uint32_t> Post(const Batch& batch, size_t first, size_t end);
  // How many writes have completed.
  Result<size_t> PollWrites();

  const std::unique_ptr<Domain> domain_;
  const std::span<std::byte> memory_;
  MemoryRegion region_;
  MemoryRegion target_;
  PeerId peer_ = 0;
  std::array<Completion, kCompletionsPerPoll> completions_;
};

}  // namespace jax_fabric::benchmarks

#endif  // JAX_FABRIC_BENCHMARKS_DOMAIN_CONTENDER_H_
