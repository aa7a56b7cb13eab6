#include "csrc/moe/testing/moe_fabric.h"

#include <gtest/gtest.h>

#include <utility>

#include "csrc/engine/domains/local/local_domain.h"
#include "csrc/moe/testing/partly_mapped_domain.h"

namespace jax_fabric::moe::testing {

std::string FabricOptions::Describe() const {
  constexpr const char* kTransports[] = {"simulated", "local", "real"};
  return fmt::format("ranks {} seed {} {} mapping {} again {} loss {} jitter {} us {}{}", ranks, seed,
                     kTransports[static_cast<int>(transport)], static_cast<int>(mapping), again_probability,
                     loss_probability, jitter_us, inline_executors ? "inline" : "queued",
                     early_completions ? " early" : "");
}

MoeConfig SmallConfig(int32_t ranks, int32_t channels) {
  MoeConfig config;
  kernels::MoeShape& shape = config.layout.shape;
  shape.ranks = ranks;
  shape.experts = 2 * ranks;
  shape.experts_per_rank = 2;
  shape.max_tokens = 4;
  shape.top_k = 2;
  shape.hidden = 8;
  shape.capacity = int64_t{ranks} * shape.max_tokens * shape.LocalTopK();
  config.channels = channels;
  config.timeout_us = 1'000'000;
  return config;
}

MoeFabric::MoeFabric(const FabricOptions& options, const MoeConfig& config)
    : options_(options), random_(options.seed), network_(options.seed, clock_) {
  for (int32_t rank = 0; rank < options.ranks; ++rank) {
    ranks_.push_back(std::make_unique<Rank>());
    Boot(rank);
  }
  MakeContexts(config);
}

void MoeFabric::Boot(int32_t rank) {
  Rank& state = *ranks_[rank];
  EngineOptions engine_options;
  engine_options.threads = false;
  engine_options.clock = &clock();
  engine_options.key = options_.key;
  engine_options.pump = [this] {
    StepAll();
    SkipIdleTime(0);
  };
  state.engine = TransferEngine::Create(engine_options).value();
  GroupOptions group_options;
  group_options.name = "rank" + std::to_string(rank);
  group_options.max_requests = 64;
  group_options.domains.push_back(MakeDomain(rank));
  state.group = state.engine->AddGroup(std::move(group_options)).value();
}

void MoeFabric::MakeContexts(const MoeConfig& config) {
  for (int32_t rank = 0; rank < size(); ++rank) {
    if (config.IsAbsent(rank)) continue;
    MoeConfig own = config;
    own.layout.shape.rank = rank;
    ranks_[rank]->context = Context::Create(own, ranks_[rank]->group, &ranks_[rank]->executor).value();
  }
}

MoeFabric::~MoeFabric() {
  Close();
  for (auto& rank : ranks_) rank->context.reset();
  for (auto& rank : former_) rank->context.reset();
}

void MoeFabric::Close() {
  CloseContexts(Everybody());
  for (Rank* rank : Everybody()) {
    if (rank->engine) static_cast<void>(rank->engine->Close(In(1'000'000)));
  }
}

std::vector<MoeFabric::Rank*> MoeFabric::Everybody() const {
  std::vector<Rank*> everybody;
  for (const auto& rank : ranks_) everybody.push_back(rank.get());
  for (const auto& rank : former_) everybody.push_back(rank.get());
  return everybody;
}

void MoeFabric::CloseContexts(const std::vector<Rank*>& ranks) {
  for (Rank* rank : ranks) rank->executor.set_inline(true);
  const auto close_all = [this, &ranks] {
    bool closed = true;
    // A deadline that has passed: one look each, for nobody else steps the engines.
    for (Rank* rank : ranks) closed = (!rank->context || rank->context->Close(In(0))) && closed;
    return closed;
  };
  bool closed = false;
  const Deadline patience = In(20'000'000);
  for (int round = 0; (real_time() ? !Passed(patience) : round < 100'000) && !closed; ++round) {
    closed = close_all();
    StepAll();
    SkipIdleTime(0);
  }
  EXPECT_TRUE(closed);
}

void MoeFabric::Kill(int32_t rank) {
  Rank& state = *ranks_[rank];
  static_cast<void>(state.engine->Close(In(0)));
  state.nic->Leave();
  state.executor.set_inline(true);
  EXPECT_TRUE(!state.context || state.context->Close(In(0)));
  state.dead = true;
  former_.push_back(std::exchange(ranks_[rank], std::make_unique<Rank>()));
}

void MoeFabric::CutOff(int32_t rank) {
  for (auto& other : ranks_) {
    if (other == ranks_[rank] || other->nic == nullptr) continue;
    other->nic->KillPeer(other->nic->AddPeer(nic(rank)->address()).value(), "taken for dead");
  }
  former_.push_back(std::exchange(ranks_[rank], std::make_unique<Rank>()));
}

void MoeFabric::Restart(int32_t rank) { Boot(rank); }

void MoeFabric::Renew(const MoeConfig& config) {
  std::vector<Rank*> ranks = Everybody();
  ranks.resize(ranks_.size());  // not the former ones
  CloseContexts(ranks);
  for (auto& rank : ranks_) rank->context.reset();
  MakeContexts(config);
}

std::unique_ptr<Domain> MoeFabric::MakeDomain(int32_t rank) {
  std::unique_ptr<Domain> domain;
  if (options_.transport == Transport::kReal) {
    domain = options_.make_domain();
  } else if (options_.transport == Transport::kLocal) {
    LocalDomainOptions local;
    local.immediate_slots = 64;
    local.message_slots = 16;
    domain = CreateLocalDomain(local).value();
  } else {
    simulated::SimulatedDomainOptions nic;
    nic.name = "nic" + std::to_string(rank);
    nic.mappable = true;
    nic.nic = {.latency_ns = 0,
               .jitter_ns = options_.jitter_us * 1000,
               .segment_bytes = options_.segment_bytes,
               .handshake_ns = 0};
    nic.nic.completion_ns = options_.jitter_us * 1000;
    nic.faults.again_probability = options_.again_probability;
    nic.faults.loss_probability = options_.loss_probability;
    nic.faults.retransmit_ns = 10'000;
    nic.faults.early_completion_probability = options_.early_completions ? 0.5 : 0;
    auto made = std::make_unique<simulated::SimulatedDomain>(network_, nic);
    ranks_[rank]->nic = made.get();
    domain = std::move(made);
  }
  return std::make_unique<PartlyMappedDomain>(std::move(domain), [this] { return MapsThisPeer(); });
}

bool MoeFabric::MapsThisPeer() {
  return options_.mapping == Mapping::kAll || (options_.mapping == Mapping::kSome && Chance(0.5));
}

std::vector<Bytes> MoeFabric::Introductions() const {
  std::vector<Bytes> introductions;
  for (const auto& rank : ranks_) {
    introductions.push_back(rank->context ? rank->context->Introduction().value() : Bytes());
  }
  return introductions;
}

void MoeFabric::Connect() {
  constexpr int64_t kConnectUs = 20'000'000;  // emulated machines with soft-RoCE
  const std::vector<Bytes> introductions = Introductions();
  for (auto& rank : ranks_) {
    if (!rank->context) continue;
    const Status status = rank->context->Connect(introductions, In(kConnectUs));
    ASSERT_TRUE(status.has_value()) << status.error().message;
  }
  for (auto& rank : ranks_) rank->executor.set_inline(options_.inline_executors);
}

bool MoeFabric::StepAny() {
  Rank& rank = *ranks_[random_() % ranks_.size()];
  const bool busy = Chance(0.5) ? rank.engine && rank.engine->Step() : rank.executor.RunOne();
  StepFormer();
  clock_.Advance(1);
  return busy;
}

void MoeFabric::StepFormer() {
  for (auto& rank : former_) {
    if (rank->dead) continue;
    rank->engine->Step();
    rank->executor.RunOne();
  }
}

void MoeFabric::SkipIdleTime(int64_t otherwise_us) {
  const int64_t now_ns = clock_.NowNs();
  clock_.AdvanceNs(network_.NextEventNs().value_or(now_ns + otherwise_us * 1000) - now_ns);
}

void MoeFabric::StepAll(int rounds) {
  for (int i = 0; i < rounds; ++i) {
    for (auto& rank : ranks_) {
      if (rank->engine) rank->engine->Step();
      rank->executor.RunOne();
    }
    StepFormer();
    clock_.Advance(1);
  }
}

bool MoeFabric::StepUntil(const std::function<bool()>& done, int rounds) {
  const Deadline patience = In(int64_t{1000} * rounds);
  for (int i = 0; real_time() ? !Passed(patience) : i < rounds; ++i) {
    if (done()) return true;
    StepAll();
  }
  return done();
}

}  // namespace jax_fabric::moe::testing
