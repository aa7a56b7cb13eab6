// Ranks of a model: engines without threads, each with one modelled NIC, on a virtual clock.
#ifndef JAX_FABRIC_MOE_MODEL_MODEL_RANKS_H_
#define JAX_FABRIC_MOE_MODEL_MODEL_RANKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "csrc/engine/domains/simulated/simulated_domain.h"
#include "csrc/engine/domains/simulated/simulated_network.h"
#include "csrc/engine/testing/virtual_clock.h"
#include "csrc/engine/transfer_engine.h"
#include "csrc/moe/model/model_options.h"

namespace jax_fabric::moe::model {

class ModelRanks {
 public:
  struct Rank {
    std::unique_ptr<TransferEngine> engine;
    DomainGroup* group = nullptr;
    simulated::SimulatedDomain* nic = nullptr;
  };

  static Result<std::unique_ptr<ModelRanks>> Create(const ModelOptions& options, uint64_t copied_bytes);
  ~ModelRanks();

  size_t size() const { return ranks_.size(); }
  Rank& operator[](size_t rank) { return ranks_[rank]; }
  const Clock& clock() const { return clock_; }
  int64_t now_ns() const { return clock_.NowNs(); }
  Deadline In(int64_t microseconds) const { return Deadline::After(clock_, microseconds); }

  // `action` runs when the clock is there.
  void At(int64_t time_ns, std::function<void()> action);
  // Until `done`, or an error when nothing will happen any more.
  Status RunUntil(const std::function<bool()>& done);

 private:
  struct Timed {
    int64_t time_ns;
    uint64_t order;
    std::function<void()> action;
    bool operator>(const Timed& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : order > other.order;
    }
  };
  explicit ModelRanks(uint64_t seed) : network_(seed, clock_) {}
  // Every engine once; then the clock goes to where something happens next. False: nothing will.
  bool Step();

  jax_fabric::testing::VirtualClock clock_;
  simulated::SimulatedNetwork network_;
  std::vector<Rank> ranks_;
  std::priority_queue<Timed, std::vector<Timed>, std::greater<>> actions_;
  uint64_t next_order_ = 0;
};

}  // namespace jax_fabric::moe::model

#endif  // JAX_FABRIC_MOE_MODEL_MODEL_RANKS_H_
