// One rank of a program of writes: posts lists of them, and goes on when as many immediates have come.
#ifndef JAX_FABRIC_MOE_MODEL_PROGRAM_RANK_H_
#define JAX_FABRIC_MOE_MODEL_PROGRAM_RANK_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "csrc/moe/model/model_ranks.h"

namespace jax_fabric::moe::model {

// What a write says, as the receiver counts it.
enum class Signal : uint8_t { kRoutes, kRows, kOddRows, kCombine, kBarrier };
inline constexpr uint32_t kSignals = 5;

struct Message {
  int32_t target = 0;  // among the ranks that are run
  int64_t bytes = 0;
};

class ProgramRank {
 public:
  // What the others need to write here.
  struct Introduction {
    Bytes address;
    RemoteMemory memory;
    uint32_t first_immediate = 0;
  };

  static Result<ProgramRank> Create(ModelRanks& ranks, int32_t rank, int64_t memory_bytes);
  const Introduction& introduction() const { return introduction_; }
  // `introductions` of all ranks, which outlive this one.
  Status Connect(std::span<const Introduction* const> introductions);

  // Posts them at `time_ns` or later.
  void Post(int64_t time_ns, Signal signal, std::vector<Message> messages, int64_t host_ns);
  // Runs `next` when so many have come; at once for none. One at a time for each signal.
  void Expect(Signal signal, int64_t count, std::function<void()> next);

  const std::optional<Error>& error() const { return error_; }
  uint64_t writes() const { return writes_; }
  uint64_t wire_bytes() const { return wire_bytes_; }

 private:
  struct Waiter {
    ProgramRank* rank;
    std::function<void()> next;
  };
  ProgramRank(ModelRanks& ranks, int32_t rank) : ranks_(&ranks), rank_(rank) {}
  void PostNow(Signal signal, const std::vector<Message>& messages, int64_t host_ns);
  void Fail(const Error& error);

  ModelRanks* ranks_;
  int32_t rank_;
  Introduction introduction_;
  RegisteredMemory memory_;
  std::span<const Introduction* const> introductions_;
  std::vector<PeerHandle> peers_;
  std::deque<Waiter> waiters_;  // callbacks point to them
  std::optional<Error> error_;
  uint64_t writes_ = 0;
  uint64_t wire_bytes_ = 0;
};

}  // namespace jax_fabric::moe::model

#endif  // JAX_FABRIC_MOE_MODEL_PROGRAM_RANK_H_
