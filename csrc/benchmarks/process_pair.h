// ProcessPair: this process, which writes, and a child, which is written to and polls one end after the other. Made
// before either touches a NIC's library: those do not survive a fork.
#ifndef JAX_FABRIC_BENCHMARKS_PROCESS_PAIR_H_
#define JAX_FABRIC_BENCHMARKS_PROCESS_PAIR_H_

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/unique_fd.h"
#include "csrc/benchmarks/contender.h"

namespace jax_fabric::benchmarks {

enum class Role { kWriter, kTarget };

class ProcessPair {
 public:
  // All ends of one process, always in the same order.
  using Maker = std::function<Result<std::vector<std::unique_ptr<Contender>>>(Role, std::span<std::byte> memory)>;

  static Result<std::unique_ptr<ProcessPair>> Start(uint64_t memory_bytes, const Maker& make);
  ~ProcessPair();

  std::span<const std::unique_ptr<Contender>> contenders() const { return contenders_; }
  std::span<std::byte> source() const { return source_; }
  // The child's, which both see.
  std::span<std::byte> target() const { return target_; }
  // From now on the child polls this one.
  void Turn(size_t contender) { shared_->turn.store(contender, std::memory_order_release); }

 private:
  static constexpr size_t kQuit = ~size_t{0};
  struct Shared {
    std::atomic<size_t> turn{0};
  };

  ProcessPair() = default;
  Status Fork(const Maker& make);
  Status RunTarget(const Maker& make, int socket);
  Status Meet();

  std::span<std::byte> source_;
  std::span<std::byte> target_;
  Shared* shared_ = nullptr;
  UniqueFd socket_;
  pid_t child_ = -1;
  std::vector<std::unique_ptr<Contender>> contenders_;
};

}  // namespace jax_fabric::benchmarks

#endif  // JAX_FABRIC_BENCHMARKS_PROCESS_PAIR_H_
