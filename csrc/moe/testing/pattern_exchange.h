// A call without arithmetic: every message is filled with a pattern that says which call, round, source and target it
// belongs to, and is checked word by word. What has been read is overwritten with poison.
#ifndef JAX_FABRIC_MOE_TESTING_PATTERN_EXCHANGE_H_
#define JAX_FABRIC_MOE_TESTING_PATTERN_EXCHANGE_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/moe/operation.h"

namespace jax_fabric::moe::testing {

// What a test says about one call, the same on all ranks unless a test wants it otherwise.
struct PatternCall {
  CallSite site;
  int64_t run = 1;
  kernels::ExchangeKind kind = kernels::ExchangeKind::kCombine;  // any but kDispatch
  uint64_t signature = 7;
  uint64_t pattern = 0;    // of the payload: different for all calls of a test
  int32_t rows = -1;       // to every rank; -1: drawn from the pattern for every pair of ranks and round
  bool check_rows = true;  // the receiver knows how many rows there must be
  int32_t rounds = 1;
  bool rounds_known = true;  // else only after the first round, as in a dispatch
};

class PatternExchange : public ExchangeOperation {
 public:
  PatternExchange(const kernels::SlotLayout& layout, const PatternCall& call)
      : ExchangeOperation(call.site, call.run, call.kind, call.signature), layout_(layout), call_(call) {}

  void Pack(int32_t round, const kernels::MessageStamp& stamp, void* const* slots, int64_t* message_bytes) override;
  int32_t elements() const override { return 1; }
  kernels::ExpectedRows RowsOf(int32_t round, int32_t source) const override;
  Status Unpack(int32_t round, const void* const* slots) override;
  int32_t rounds() const override { return call_.rounds_known || unpacks_ > 0 ? call_.rounds : 0; }
  void Finish(const Error* error) override;

  // Release in Finish, acquire here: what follows may be read once it is true.
  bool finished() const { return finishes_.load(std::memory_order_acquire) > 0; }
  int finishes() const { return finishes_.load(std::memory_order_acquire); }
  bool ok() const {
    return finishes() == 1 && packs_ == call_.rounds && unpacks_ == call_.rounds && error_.message.empty();
  }
  const Error& error() const { return error_; }
  // One each round.
  int packs() const { return packs_; }
  int unpacks() const { return unpacks_; }
  // Empty, or what was wrong with a message's content.
  const std::string& damage() const { return damage_; }

 private:
  int64_t Rows(int32_t round, int32_t source, int32_t target) const;
  int64_t PayloadOffset(int64_t rows) const;
  uint64_t Word(int32_t round, int32_t source, int32_t target, int64_t index) const;

  const kernels::SlotLayout layout_;
  const PatternCall call_;
  int packs_ = 0;
  int unpacks_ = 0;
  std::atomic<int> finishes_{0};
  Error error_;
  std::string damage_;
};

}  // namespace jax_fabric::moe::testing

#endif  // JAX_FABRIC_MOE_TESTING_PATTERN_EXCHANGE_H_
