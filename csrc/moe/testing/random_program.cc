#include "csrc/moe/testing/random_program.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

#include "csrc/moe/testing/delivery_guard.h"
#include "csrc/moe/testing/kernel_layer.h"

namespace jax_fabric::moe::testing {
namespace {

using kernels::ElementType;
using kernels::testing::WorldConfig;
using Fault = RandomProgram::Fault;

// Far more steps than any program takes.
constexpr int kMaxSteps = 2'000'000;
// Of the virtual clock: a call that waits longer ends with an error. Longer than any program takes.
constexpr int64_t kTimeoutUs = 100'000'000;
// Of the machine's clock, where a real transport goes by it.
constexpr int64_t kPatienceUs = 60'000'000;

template <typename T, size_t kCount>
T Pick(std::mt19937_64& random, const T (&values)[kCount]) {
  return values[random() % kCount];
}

WorldConfig DrawWorld(int32_t ranks, std::mt19937_64& random) {
  constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16};
  WorldConfig config;
  config.ranks = ranks;
  config.experts = 1 + static_cast<int32_t>(random() % (2 * ranks + 3));
  config.max_tokens = 1 + static_cast<int32_t>(random() % 6);
  config.top_k = 1 + static_cast<int32_t>(random() % std::min(config.experts, random() % 4 == 0 ? 16 : 3));
  config.hidden = 1 + static_cast<int32_t>(random() % 20);
  // Around a block of scales.
  if (random() % 16 == 0) config.hidden = 127 + static_cast<int32_t>(random() % 3);
  if (random() % 2 == 0) config.private_tokens = 1 + static_cast<int32_t>(random() % config.max_tokens);
  config.routing = Pick(random, kernels::testing::kAllRoutings);
  config.odd_ids = random() % 4 != 0;
  config.full_batches = random() % 4 == 0;
  if (random() % 4 == 0) config.cache_bytes = 0;
  // Lost before this epoch, and the others go on without them.
  if (random() % 6 == 0) {
    for (int32_t rank = 0; rank < ranks; ++rank) config.absent.push_back(random() % 3 == 0);
    config.absent[random() % ranks] = 0;
  }
  config.x_type = Pick(random, kTypes);
  config.tokens_type = Pick(random, kTypes);
  config.combine_type = Pick(random, kTypes);
  config.redispatch_type = Pick(random, kTypes);
  config.out_type = Pick(random, kTypes);
  config.dispatch_type = Pick(random, kTypes);
  config.quantised = random() % 4 == 0;
  if (config.quantised) config.dispatch_type = ElementType::kFloat8E4m3fn;
  return config;
}

FabricOptions DrawFabric(uint64_t seed, std::mt19937_64& random) {
  constexpr int32_t kRanks[] = {1, 2, 2, 2, 2, 3, 3, 3, 4, 5, 6, 7, 8};
  constexpr int64_t kJitterUs[] = {0, 4, 50, 50'000};
  constexpr uint64_t kSegmentBytes[] = {0, 16, 64, 256};
  FabricOptions options;
  options.ranks = Pick(random, kRanks);
  options.seed = seed;
  options.mapping = Pick(random, {Mapping::kNone, Mapping::kNone, Mapping::kSome, Mapping::kAll});
  options.again_probability = Pick(random, {0.0, 0.1, 0.5});
  options.loss_probability = Pick(random, {0.0, 0.0, 0.1});
  options.jitter_us = Pick(random, kJitterUs);
  options.segment_bytes = Pick(random, kSegmentBytes);
  options.early_completions = random() % 3 == 0;
  options.inline_executors = random() % 2 == 0;
  return options;
}

// The program in flight, each rank at its own pace.
class ProgramRun {
 public:
  explicit ProgramRun(const RandomProgram& program)
      : program_(program), random_(program.fabric.seed * 0x9e3779b97f4a7c15 + 1) {
    for (int32_t i = 0; i < program.layers; ++i) {
      layers_.push_back(std::make_unique<KernelLayer>(program.world, random_(), i, &guard_));
    }
    kernels::testing::World shape(program.world, 1);
    MoeConfig config = ConfigOf(shape, program.channels);
    leader_ = config.Leader();
    config.timeout_us = kTimeoutUs;
    fabric_ = std::make_unique<MoeFabric>(program.fabric, config);
    fabric_->Connect();
    for (int32_t rank = 0; rank < fabric_->size(); ++rank) {
      if (program.world.IsAbsent(rank)) continue;
      guard_.Watch(fabric_->context(rank).config(), fabric_->context(rank).slots().data());
      guard_.WatchNotices(fabric_->context(rank).config(), fabric_->context(rank).notices().data());
    }
    fabric_->network().set_landing_observer([this](uint64_t begin, uint64_t end) { guard_.Landed(begin, end); });
    steps_until_fault_ = program.fault == Fault::kNone ? -1 : static_cast<int>(random_() % 200);
  }
  ~ProgramRun() {
    // The layers' operations go away; nothing lands any more either.
    fabric_->Close();
    fabric_->network().set_landing_observer({});
  }

  ProgramOutcome Finish() {
    ProgramOutcome outcome;
    int step = 0;
    const Deadline patience = fabric_->In(kPatienceUs);
    const auto patient = [&] { return fabric_->real_time() ? !fabric_->Passed(patience) : step < kMaxSteps; };
    while (patient() && !Done() && guard_.violation().empty()) {
      ++step;
      Something();
    }
    outcome.failure = Failure(step);
    if (!outcome.failure.empty()) outcome.failure += "\nprogram: " + program_.Describe();
    outcome.landed_bytes = guard_.landed_bytes();
    outcome.raised = fabric_->context(leader_).error() != nullptr;
    return outcome;
  }

 private:
  bool Done() const {
    return std::all_of(layers_.begin(), layers_.end(), [this](const auto& layer) {
      for (int32_t rank = 0; rank < fabric_->size(); ++rank) {
        if (!layer->Done(rank)) return false;
      }
      return true;
    });
  }

  void Something() {
    if (steps_until_fault_ >= 0 && steps_until_fault_-- == 0) Break();
    if (fabric_->Chance(program_.submit_probability) && Submit()) return;
    if (fabric_->StepAny()) {
      idle_steps_ = 0;
    } else if (++idle_steps_ > 4 * fabric_->size()) {
      idle_steps_ = 0;
      // Nobody has anything to do, but for those whose turn has not come: so time goes by. In small steps, for whoever
      // was answered "again", or was not drawn, looks idle as well: with ten steps to the deadline one seed in 30,000
      // got there.
      if (Submit()) return;
      fabric_->SkipIdleTime(kTimeoutUs / 200);
      // What was promised to a peer behind a cut link is sent again and again, until the deadline.
      if (program_.fault == Fault::kCutLink) fabric_->Sleep(kTimeoutUs / 100);
    }
  }

  // The next stage of any layer on any rank.
  bool Submit() {
    const auto first = static_cast<int32_t>(random_() % fabric_->size());
    const size_t first_layer = random_() % layers_.size();
    for (int32_t r = 0; r < fabric_->size(); ++r) {
      const int32_t rank = (first + r) % fabric_->size();
      for (size_t i = 0; i < layers_.size(); ++i) {
        const size_t layer = (first_layer + i) % layers_.size();
        if (!layers_[layer]->Ready(rank)) continue;
        const auto channel = static_cast<int32_t>(layer % program_.channels);
        layers_[layer]->SubmitNext(rank, fabric_->channel(rank, channel));
        return true;
      }
    }
    return false;
  }

  void Break() {
    const auto rank = static_cast<int32_t>(random_() % fabric_->size());
    const auto other =
        static_cast<int32_t>((rank + 1 + random_() % std::max(1, fabric_->size() - 1)) % fabric_->size());
    switch (program_.fault) {
      case Fault::kNone:
        return;
      case Fault::kFailedWrite:
        fabric_->nic(rank)->faults().fail_post = static_cast<int>(random_() % 8);
        return;
      case Fault::kLostPeer:
        if (!program_.world.IsAbsent(rank) && program_.Present() > 1) {
          fabric_->nic(rank)->KillPeer(0, "killed by the test");
        }
        return;
      case Fault::kCutLink:
        if (rank == other) return;
        for (const int32_t each : {rank, other}) fabric_->nic(each)->faults().retries = 3;
        fabric_->network().CutLink(*fabric_->nic(rank), *fabric_->nic(other));
        return;
    }
  }

  std::string Failure(int steps) const {
    if (!guard_.violation().empty()) return guard_.violation();
    if (!Done()) return fmt::format("stuck after {} steps", steps);
    for (const auto& layer : layers_) {
      if (std::string failure = layer->Failure(); !failure.empty()) return failure;
    }
    if (program_.fault != Fault::kNone) return {};
    for (int32_t rank = 0; rank < fabric_->size(); ++rank) {
      if (program_.world.IsAbsent(rank)) continue;
      if (const Error* error = fabric_->context(rank).error()) return fmt::format("rank {}: {}", rank, error->message);
    }
    return {};
  }

  const RandomProgram& program_;
  std::mt19937_64 random_;
  DeliveryGuard guard_;
  std::vector<std::unique_ptr<KernelLayer>> layers_;  // outlive the fabric
  std::unique_ptr<MoeFabric> fabric_;
  int32_t leader_ = 0;
  int steps_until_fault_ = -1;
  int idle_steps_ = 0;
};

}  // namespace

RandomProgram RandomProgram::Draw(uint64_t seed) {
  std::mt19937_64 random(seed);
  RandomProgram program;
  program.fabric = DrawFabric(seed, random);
  program.world = DrawWorld(program.fabric.ranks, random);
  program.layers = 1 + static_cast<int32_t>(random() % 3);
  program.channels = 1 + static_cast<int32_t>(random() % 2);
  program.submit_probability = Pick(random, {0.02, 0.2, 0.8});
  if (random() % 8 == 0) program.fault = Pick(random, {Fault::kFailedWrite, Fault::kLostPeer, Fault::kCutLink});
  return program;
}

int32_t RandomProgram::Present() const {
  int32_t present = 0;
  for (int32_t rank = 0; rank < world.ranks; ++rank) present += !world.IsAbsent(rank);
  return present;
}

std::string RandomProgram::Describe() const {
  constexpr const char* kFaults[] = {"none", "a failed write", "a lost peer", "a cut link"};
  return fmt::format("{} layers on {} channels, submit {}, fault: {}; {}; {}", layers, channels, submit_probability,
                     kFaults[static_cast<int>(fault)], fabric.Describe(), world.Describe());
}

ProgramOutcome RunProgram(const RandomProgram& program) { return ProgramRun(program).Finish(); }

}  // namespace jax_fabric::moe::testing
