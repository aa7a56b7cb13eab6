// All ranks of an expert-parallel context in one thread: whole engines that are stepped, on a virtual clock but where
// the transport is a real one. Everything random comes from one seed.
#ifndef JAX_FABRIC_MOE_TESTING_MOE_FABRIC_H_
#define JAX_FABRIC_MOE_TESTING_MOE_FABRIC_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/base/executor.h"
#include "csrc/engine/domains/simulated/simulated_domain.h"
#include "csrc/engine/domains/simulated/simulated_network.h"
#include "csrc/engine/testing/virtual_clock.h"
#include "csrc/engine/transfer_engine.h"
#include "csrc/moe/context.h"

namespace jax_fabric::moe::testing {

// Runs its tasks when the test says so: a kernel thread that may be slow.
class QueueExecutor final : public Executor {
 public:
  void Submit(Task* task) override {
    if (inline_) return task->run(task->context);
    tasks_.push_back(task);
  }
  bool RunOne() {
    if (tasks_.empty()) return false;
    Task* task = tasks_.front();
    tasks_.pop_front();
    task->run(task->context);
    return true;
  }
  bool idle() const { return tasks_.empty(); }
  // From now on; what is queued runs first.
  void set_inline(bool value) {
    while (!idle()) RunOne();
    inline_ = value;
  }

 private:
  bool inline_ = true;
  std::deque<Task*> tasks_;
};

enum class Transport { kSimulated, kLocal, kReal };
enum class Mapping { kNone, kSome, kAll };

struct FabricOptions {
  int32_t ranks = 2;
  uint64_t seed = 1;
  Transport transport = Transport::kSimulated;
  // kReal: of each rank. Time is that of the machine.
  std::function<std::unique_ptr<Domain>()> make_domain = {};
  Mapping mapping = Mapping::kNone;
  double again_probability = 0;               // simulated: of each post
  double loss_probability = 0;                // simulated: of each segment; it is sent again
  int64_t jitter_us = 0;                      // simulated: until a write arrives, at most
  uint64_t segment_bytes = 256;               // simulated: of the pieces that writes travel in; 0: whole
  bool early_completions = false;             // simulated: some writes succeed long before they arrive
  std::shared_ptr<const FabricKey> key = {};  // of the fabric's secret
  bool inline_executors = true;               // else worker's calls wait in a QueueExecutor

  std::string Describe() const;
};

// Small slots; capacity for anything; two experts a rank.
MoeConfig SmallConfig(int32_t ranks, int32_t channels = 2);

class MoeFabric {
 public:
  // `config` with the right rank for each of them; those that are absent have no context.
  MoeFabric(const FabricOptions& options, const MoeConfig& config);
  ~MoeFabric();
  // Contexts and engines: every operation ends.
  void Close();

  // All ranks; failures are test failures.
  void Connect();

  // --- over the simulated domain: ranks are lost, and others come in their place
  // With what it has in flight; what it had sent goes on.
  void Kill(int32_t rank);
  // The others take it for dead, and it goes on and on.
  void CutOff(int32_t rank);
  // After one of these: another incarnation, without a context until Renew.
  void Restart(int32_t rank);
  // Another membership: contexts of all that take part in `config`, not connected, in place of the former ones.
  void Renew(const MoeConfig& config);
  // The channel of the last incarnation that was cut off.
  Channel& cut_off_channel(int32_t index) { return *former_.back()->context->channel(index); }

  std::vector<Bytes> Introductions() const;

  int32_t size() const { return options_.ranks; }
  Context& context(int32_t rank) { return *ranks_[rank]->context; }
  Channel& channel(int32_t rank, int32_t index) { return *context(rank).channel(index); }
  DomainGroup* group(int32_t rank) { return ranks_[rank]->group; }
  TransferEngine& engine(int32_t rank) { return *ranks_[rank]->engine; }
  // Null over the local domain.
  simulated::SimulatedDomain* nic(int32_t rank) { return ranks_[rank]->nic; }
  void DestroyContext(int32_t rank) { ranks_[rank]->context.reset(); }

  simulated::SimulatedNetwork& network() { return network_; }

  std::mt19937_64& random() { return random_; }
  bool Chance(double probability) { return std::bernoulli_distribution(probability)(random_); }
  Deadline In(int64_t microseconds) const { return Deadline::After(clock(), microseconds); }
  bool Passed(const Deadline& deadline) const { return deadline.Passed(clock()); }
  bool real_time() const { return options_.transport == Transport::kReal; }
  // A step of one engine or executor; 1 us goes by. Returns whether there was something to do.
  bool StepAny();
  // To where the network does something next, or so far if it does nothing any more.
  void SkipIdleTime(int64_t otherwise_us);
  // Every engine and executor `rounds` times; 1 us a round.
  void StepAll(int rounds = 1);
  // False: not within `rounds`; of real transports, each stands for 1 ms.
  bool StepUntil(const std::function<bool()>& done, int rounds = 20'000);
  // Nothing happens, and time goes by.
  void Sleep(int64_t microseconds) { clock_.Advance(microseconds); }

 private:
  const Clock& clock() const { return real_time() ? static_cast<const Clock&>(SteadyClock::Get()) : clock_; }
  struct Rank {
    QueueExecutor executor;
    std::unique_ptr<TransferEngine> engine;
    DomainGroup* group = nullptr;
    simulated::SimulatedDomain* nic = nullptr;
    std::unique_ptr<Context> context;
    bool dead = false;
  };
  void Boot(int32_t rank);
  void MakeContexts(const MoeConfig& config);
  // Present incarnations in rank order, then former ones.
  std::vector<Rank*> Everybody() const;
  void CloseContexts(const std::vector<Rank*>& ranks);
  void StepFormer();
  std::unique_ptr<Domain> MakeDomain(int32_t rank);
  bool MapsThisPeer();

  const FabricOptions options_;
  std::mt19937_64 random_;
  jax_fabric::testing::VirtualClock clock_;
  simulated::SimulatedNetwork network_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  // Of lost incarnations: others may have their memory mapped.
  std::vector<std::unique_ptr<Rank>> former_;
};

}  // namespace jax_fabric::moe::testing

#endif  // JAX_FABRIC_MOE_TESTING_MOE_FABRIC_H_
