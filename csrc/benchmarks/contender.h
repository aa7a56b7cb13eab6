// Contender: one way to write to another process, of the several that a benchmark lets take turns. Each process has its
// own end of it; what the two need of each other travels as an Introduction.
//
// Everything happens in the thread that calls: on a machine of few cores nothing else competes with what is timed.
#ifndef JAX_FABRIC_BENCHMARKS_CONTENDER_H_
#define JAX_FABRIC_BENCHMARKS_CONTENDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric::benchmarks {

inline constexpr int64_t kTimeoutUs = 60'000'000;
inline constexpr size_t kCompletionsPerPoll = 64;

struct Introduction {
  Bytes address;
  Bytes memory;  // whatever names it
  uint32_t immediate = 0;
};

// Writes of one size; each goes to the offset of the target that it has in the source.
struct Batch {
  uint64_t write_bytes = 0;
  std::vector<uint64_t> offsets;
  uint32_t window = 1;  // under way at a time
  bool immediates = false;
  // The raw loop posts the immediate by itself, once its payload has arrived: what the efa domain has to do over
  // ofi_rxm.
  bool raw_immediates_apart = false;
};

class Contender {
 public:
  virtual ~Contender() = default;

  virtual std::string name() const = 0;
  virtual Result<Introduction> Introduce() = 0;
  // The writer's end: until the other end, which is polled meanwhile, can be written to.
  virtual Status Connect(const Introduction& target) = 0;
  // The target's end, before the writer connects; where the target has to know it.
  virtual Status Accept(const Introduction&) { return {}; }
  // The writer's end: until all are there.
  virtual Status Write(const Batch& batch) = 0;
  // The target's end, over and over.
  virtual void Poll() = 0;
};

// An error after kTimeoutUs without progress; looks at the clock rarely.
class ProgressGuard {
 public:
  Status Idle(const char* what) {
    if (++idle_polls_ % 4096 != 0) return {};
    const int64_t now_ns = SteadyClock::Get().NowNs();
    if (since_ns_ == 0) since_ns_ = now_ns;
    if (now_ns - since_ns_ < kTimeoutUs * 1000) return {};
    return MakeError(ErrorCode::kDeadlineExceeded, "{}: nothing has moved for {} s", what, kTimeoutUs / 1'000'000);
  }
  void Moved() { since_ns_ = 0; }

 private:
  uint64_t idle_polls_ = 0;
  int64_t since_ns_ = 0;
};

}  // namespace jax_fabric::benchmarks

#endif  // JAX_FABRIC_BENCHMARKS_CONTENDER_H_
