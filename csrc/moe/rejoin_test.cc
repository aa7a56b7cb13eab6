// Ranks are lost, the others go on without them, and new incarnations take their places: one membership epoch after
// the other, by seed, with the real kernels on a fabric that misbehaves. What a lost incarnation still has on the way,
// or goes on to send because it does not know that it was given up, changes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "csrc/moe/testing/delivery_guard.h"
#include "csrc/moe/testing/kernel_layer.h"
#include "csrc/moe/testing/moe_fabric.h"

namespace jax_fabric::moe {
namespace {

using kernels::testing::WorldConfig;
using testing::DeliveryGuard;
using testing::FabricOptions;
using testing::KernelLayer;
using testing::Mapping;
using testing::MoeFabric;

constexpr int32_t kLayers = 2;
// Of the virtual clock. Waits of ranks for each other, when one of them has heard of the loss before it has sent.
constexpr int64_t kTimeoutUs = 500'000;

// What happens between two changes of the membership.
struct Epoch {
  DeliveryGuard guard;
  std::vector<std::unique_ptr<KernelLayer>> layers;
};

class Membership {
 public:
  explicit Membership(uint64_t seed) : random_(seed) {
    world_.ranks = 2 + static_cast<int32_t>(random_() % 3);
    world_.experts = 2 * world_.ranks;
    world_.max_tokens = 4;
    world_.top_k = 2;
    if (random_() % 2 == 0) world_.private_tokens = 2;
    world_.routing = kernels::testing::kAllRoutings[random_() % std::size(kernels::testing::kAllRoutings)];
    options_.ranks = world_.ranks;
    options_.seed = seed;
    constexpr Mapping kMappings[] = {Mapping::kNone, Mapping::kNone, Mapping::kSome, Mapping::kAll};
    options_.mapping = kMappings[random_() % std::size(kMappings)];
    options_.again_probability = random_() % 2 == 0 ? 0 : 0.1;
    options_.loss_probability = random_() % 2 == 0 ? 0 : 0.1;
    options_.jitter_us = random_() % 2 == 0 ? 4 : 2'000;
    options_.segment_bytes = random_() % 2 == 0 ? 64 : 256;
    options_.early_completions = random_() % 2 == 0;
    options_.inline_executors = random_() % 2 == 0;
  }
  ~Membership() {
    fabric_->Close();  // before the operations go away
    fabric_->network().set_landing_observer({});
  }

  int32_t AnyRank() { return static_cast<int32_t>(random_() % world_.ranks); }
  bool Chance(double probability) { return std::bernoulli_distribution(probability)(random_); }
  MoeFabric& fabric() { return *fabric_; }
  // Nothing of a mapped rank can be stopped in one process: its stores go on until its memory is gone.
  bool MayBeCutOff() const { return options_.mapping == Mapping::kNone; }

  // The others take it for dead, and it goes on; what still lands in its own memory is nobody's business.
  void CutOff(int32_t rank) {
    outcasts_.push_back(fabric_->context(rank).slots());
    fabric_->CutOff(rank);
  }

  // The next epoch begins without these ranks; -1: with all.
  void Begin(int32_t without) {
    world_.absent.clear();
    if (without >= 0) {
      world_.absent.assign(world_.ranks, 0);
      world_.absent[without] = 1;
    }
    Epoch& epoch = *epochs_.emplace_back(std::make_unique<Epoch>());
    for (int32_t i = 0; i < kLayers; ++i) {
      epoch.layers.push_back(std::make_unique<KernelLayer>(world_, random_(), i, &epoch.guard));
    }
    kernels::testing::World shape(world_, 1);
    config_ = testing::ConfigOf(shape, 1);
    config_.membership_epoch = static_cast<uint32_t>(epochs_.size() - 1);
    config_.timeout_us = kTimeoutUs;
    if (fabric_) {
      fabric_->Renew(config_);
    } else {
      fabric_ = std::make_unique<MoeFabric>(options_, config_);
    }
  }

  void Connect() {
    fabric_->Connect();
    DeliveryGuard* guard = &epochs_.back()->guard;
    for (int32_t rank = 0; rank < world_.ranks; ++rank) {
      if (world_.IsAbsent(rank)) continue;
      guard->Watch(fabric_->context(rank).config(), fabric_->context(rank).slots().data());
      guard->WatchNotices(fabric_->context(rank).config(), fabric_->context(rank).notices().data());
    }
    fabric_->network().set_landing_observer([this, guard](uint64_t begin, uint64_t end) {
      if (!IsOfOutcast(begin)) guard->Landed(begin, end);
    });
  }

  // At most so many steps, or until all ranks but `lost` have ended what there is to do. Returns whether they have.
  bool Work(int steps, int32_t lost = -1) {
    for (int step = 0; step < steps; ++step) {
      if (Done(lost)) return true;
      Something(lost);
    }
    return Done(lost);
  }

  // What is wrong with results of the epoch, but for those of `lost`, or with what has landed.
  std::string Failure(int32_t lost = -1) const {
    const Epoch& epoch = *epochs_.back();
    if (!epoch.guard.violation().empty()) return epoch.guard.violation();
    for (const auto& layer : epoch.layers) {
      if (std::string failure = layer->Failure(lost); !failure.empty()) return failure;
    }
    return {};
  }

  bool Raised(int32_t rank) const { return fabric_->context(rank).error() != nullptr; }
  void Submit(int32_t rank, Channel& channel, size_t epoch) {
    for (auto& layer : epochs_[epoch]->layers) {
      if (layer->Ready(rank)) layer->SubmitNext(rank, channel);
    }
  }
  const std::string Describe() const { return options_.Describe() + "; " + world_.Describe(); }

 private:
  bool Done(int32_t lost) const {
    return std::all_of(epochs_.back()->layers.begin(), epochs_.back()->layers.end(), [&](const auto& layer) {
      for (int32_t rank = 0; rank < world_.ranks; ++rank) {
        if (rank != lost && !layer->Done(rank)) return false;
      }
      return true;
    });
  }

  bool IsOfOutcast(uint64_t address) const {
    return std::any_of(outcasts_.begin(), outcasts_.end(), [address](std::span<const std::byte> memory) {
      return address - reinterpret_cast<uint64_t>(memory.data()) < memory.size();
    });
  }

  void Something(int32_t lost) {
    if (Chance(0.1) && SubmitAny(lost)) return;
    if (fabric_->StepAny()) {
      idle_steps_ = 0;
    } else if (++idle_steps_ > 4 * world_.ranks) {
      idle_steps_ = 0;
      if (!SubmitAny(lost)) fabric_->SkipIdleTime(kTimeoutUs / 10);
    }
  }

  bool SubmitAny(int32_t lost) {
    const int32_t first = AnyRank();
    for (int32_t i = 0; i < world_.ranks; ++i) {
      const int32_t rank = (first + i) % world_.ranks;
      if (rank == lost) continue;
      for (auto& layer : epochs_.back()->layers) {
        if (!layer->Ready(rank)) continue;
        layer->SubmitNext(rank, fabric_->channel(rank, 0));
        return true;
      }
    }
    return false;
  }

  std::mt19937_64 random_;
  WorldConfig world_;
  FabricOptions options_;
  MoeConfig config_;
  std::vector<std::unique_ptr<Epoch>> epochs_;  // outlive the fabric
  std::unique_ptr<MoeFabric> fabric_;
  std::vector<std::span<const std::byte>> outcasts_;
  int idle_steps_ = 0;
};

#if defined(__SANITIZE_ADDRESS__)
constexpr int kSeeds = 50;
#else
constexpr int kSeeds = 200;
#endif
constexpr int kForever = 200'000;

struct Totals {
  int raised = 0;   // survivors that were told of a loss
  int refused = 0;  // incarnations that were cut off, went on, and got nowhere
};

// One rank is lost, the others go on, it comes back.
void LoseAndRejoin(Membership& members, size_t& epoch, Totals& totals) {
  const int32_t victim = members.AnyRank();
  const bool cut_off = members.MayBeCutOff() && members.Chance(0.5);
  members.Work(static_cast<int>(members.Chance(0.2) ? kForever : 50 + 200 * members.AnyRank()));
  const std::vector<Bytes> former = members.fabric().Introductions();
  const size_t lost_in = epoch;
  if (cut_off) {
    // So that it comes to rest, and has something to send later.
    for (int i = 0; i < 200; ++i) members.fabric().StepAny();
    members.CutOff(victim);
  } else {
    members.fabric().Kill(victim);
  }
  ASSERT_TRUE(members.Work(kForever, victim)) << "a survivor waits for ever";
  ASSERT_EQ(members.Failure(victim), "");
  for (int32_t rank = 0; rank < members.fabric().size(); ++rank) {
    if (rank == victim || !members.Raised(rank)) continue;
    ++totals.raised;
    ASSERT_EQ(members.fabric().context(rank).LostRanks(), std::vector<int32_t>{victim})
        << "rank " << rank << ": " << members.fabric().context(rank).error()->message;
  }

  members.Begin(victim);
  ++epoch;
  members.Connect();
  if (cut_off) members.Submit(victim, members.fabric().cut_off_channel(0), lost_in);
  const bool restarts_early = members.Chance(0.5);
  if (restarts_early) {
    members.Work(100);
    members.fabric().Restart(victim);
  }
  ASSERT_TRUE(members.Work(kForever));
  ASSERT_EQ(members.Failure(), "");
  if (!restarts_early) members.fabric().Restart(victim);

  members.Begin(-1);
  ++epoch;
  // What the former incarnation has published is of no use any more, to the new one as little as to others.
  for (int32_t rank = 0; rank < members.fabric().size(); ++rank) {
    const Status stale = members.fabric().context(rank).Connect(former, members.fabric().In(1000));
    ASSERT_FALSE(stale.has_value());
    ASSERT_NE(stale.error().message.find(
                  fmt::format("is of membership epoch {}, and rank {} is in epoch {}", lost_in, rank, epoch)),
              std::string::npos)
        << stale.error().message;
  }
  members.Connect();
  if (cut_off) members.Submit(victim, members.fabric().cut_off_channel(0), lost_in);
  ASSERT_TRUE(members.Work(kForever));
  ASSERT_EQ(members.Failure(), "");
  for (int32_t rank = 0; rank < members.fabric().size(); ++rank) ASSERT_FALSE(members.Raised(rank));
  if (!cut_off) return;
  const Error* error = members.fabric().cut_off_channel(0).error();
  totals.refused += error != nullptr && error->message.find("the remote key is unknown there") != std::string::npos;
}

TEST(Rejoin, LostRanksComeBack) {
  Totals totals;
  for (int seed = 0; seed < kSeeds; ++seed) {
    Membership members(static_cast<uint64_t>(seed));
    members.Begin(-1);
    members.Connect();
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, members.Describe()));
    size_t epoch = 0;
    for (int round = 0; round < 2; ++round) {
      ASSERT_NO_FATAL_FAILURE(LoseAndRejoin(members, epoch, totals)) << "round " << round;
      // The epoch in which all are there again is that in which the next one is lost.
      members.Begin(-1);
      ++epoch;
      members.Connect();
    }
  }
  EXPECT_GT(totals.raised, kSeeds);
  EXPECT_GT(totals.refused, kSeeds / 20);
  std::printf("%d losses raised, %d outcasts refused\n", totals.raised, totals.refused);
}

}  // namespace
}  // namespace jax_fabric::moe
