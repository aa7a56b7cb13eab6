#include "csrc/moe/model/model_ranks.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace jax_fabric::moe::model {
namespace {

// How often a worker looks at its NIC: finer steps cost time of ours and change little.
constexpr int64_t kPollNs = 250;
// Of a program that gets stuck.
constexpr int kMaxIdleSteps = 1000;
constexpr int kMaxDrainSteps = 100'000;

// In how many pieces an average message travels, at most. Real packets are smaller: those of all messages alternate,
// and more pieces change little.
constexpr int64_t kPieces = 8;
constexpr int64_t kLeastPieceBytes = 4096;

uint64_t SegmentBytes(const ModelOptions& options) {
  const kernels::SlotLayout layout = options.Config().layout;
  const int64_t rows = (int64_t{options.tokens} * options.top_k + options.ranks - 1) / options.ranks;
  return static_cast<uint64_t>(std::max(kLeastPieceBytes, rows * layout.CombineRowBytes() / kPieces));
}

}  // namespace

Result<std::unique_ptr<ModelRanks>> ModelRanks::Create(const ModelOptions& options, uint64_t copied_bytes) {
  std::unique_ptr<ModelRanks> ranks(new ModelRanks(options.seed));
  simulated::SimulatedDomainOptions nic;
  nic.nic = options.nic;
  nic.nic.handshake_ns = 0;
  nic.nic.interleaved = true;
  nic.nic.segment_bytes = SegmentBytes(options);
  nic.limits.max_outstanding = 8 * static_cast<uint32_t>(options.ranks) + 64;
  nic.copied_bytes = copied_bytes;
  nic.mappable = true;
  nic.node_size = static_cast<uint32_t>(options.node_ranks);
  ranks->ranks_.resize(options.Run());
  for (size_t i = 0; i < ranks->ranks_.size(); ++i) {
    Rank& rank = ranks->ranks_[i];
    EngineOptions engine_options;
    engine_options.threads = false;
    engine_options.clock = &ranks->clock_;
    engine_options.pump = [self = ranks.get()] { self->Step(); };
    JF_ASSIGN_OR_RETURN(rank.engine, TransferEngine::Create(engine_options));
    GroupOptions group;
    group.name = fmt::format("rank {}", i);
    nic.name = fmt::format("nic {}", i);
    auto domain = std::make_unique<simulated::SimulatedDomain>(ranks->network_, nic);
    rank.nic = domain.get();
    group.domains.push_back(std::move(domain));
    JF_ASSIGN_OR_RETURN(rank.group, rank.engine->AddGroup(std::move(group)));
  }
  return ranks;
}

ModelRanks::~ModelRanks() {
  actions_ = {};
  // What is on its way arrives, so that nothing has to be looked for.
  for (int i = 0; i < kMaxDrainSteps && network_.NextEventNs().has_value(); ++i) Step();
  // Closing steps all engines, so all of them have to be there still.
  for (Rank& rank : ranks_) {
    if (rank.engine != nullptr) static_cast<void>(rank.engine->Close(In(1'000'000)));
  }
}

void ModelRanks::At(int64_t time_ns, std::function<void()> action) {
  actions_.push({time_ns, next_order_++, std::move(action)});
}

bool ModelRanks::Step() {
  while (!actions_.empty() && actions_.top().time_ns <= now_ns()) {
    const std::function<void()> action = actions_.top().action;
    actions_.pop();
    action();
  }
  bool busy = false;
  for (Rank& rank : ranks_) busy |= rank.engine != nullptr && rank.engine->Step();
  const int64_t now = now_ns();
  std::optional<int64_t> next = network_.NextEventNs();
  if (!actions_.empty()) next = std::min(next.value_or(INT64_MAX), actions_.top().time_ns);
  const int64_t poll = now + kPollNs;
  // A worker that had something to do looks again after its interval; the others wait for the next event.
  clock_.AdvanceNs((busy ? poll : std::max(poll, next.value_or(poll))) - now);
  return busy || next.has_value();
}

Status ModelRanks::RunUntil(const std::function<bool()>& done) {
  for (int idle = 0; !done();) {
    idle = Step() ? 0 : idle + 1;
    if (idle > kMaxIdleSteps) return MakeError(ErrorCode::kDeadlineExceeded, "the modelled program is stuck");
  }
  return {};
}

}  // namespace jax_fabric::moe::model
