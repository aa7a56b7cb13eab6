#include "csrc/moe/testing/kernel_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace jax_fabric::moe::testing {
namespace {

using kernels::ExchangeKind;
using kernels::testing::Array;
using kernels::testing::RankState;
using kernels::testing::WorldConfig;

template <typename SendArgs, typename ReceiveArgs>
class GuardedExchange final : public KernelExchange<SendArgs, ReceiveArgs>, public KernelOperation {
 public:
  using Base = KernelExchange<SendArgs, ReceiveArgs>;

  GuardedExchange(const CallSite& site, ExchangeKind kind, const typename Base::Kernels& kernels, DeliveryGuard* guard)
      : Base(site, /*run=*/1, kind, /*signature=*/99, kernels),
        ranks_(kernels.receive_args.layout.shape.ranks),
        guard_(guard) {}

  ExchangeOperation* exchange() override { return this; }
  Status Unpack(int32_t round, const void* const* slots) override {
    Status status = Base::Unpack(round, slots);
    if (guard_ != nullptr) guard_->HaveRead(slots, ranks_);
    return status;
  }
  void Finish(const Error* failure) override {
    ++finishes;
    if (failure != nullptr) error = *failure;
  }

 private:
  const int32_t ranks_;
  DeliveryGuard* const guard_;
};

template <typename SendArgs, typename ReceiveArgs>
std::unique_ptr<KernelOperation> Make(const CallSite& site, ExchangeKind kind, void (*send)(const SendArgs&),
                                      const SendArgs& send_args, void (*receive)(const ReceiveArgs&),
                                      const ReceiveArgs& receive_args, DeliveryGuard* guard) {
  using Exchange = GuardedExchange<SendArgs, ReceiveArgs>;
  const typename Exchange::Base::Kernels kernels{send, send_args, receive, receive_args};
  return std::make_unique<Exchange>(site, kind, kernels, guard);
}

bool Same(const Array& a, const Array& b) {
  if (a.size() != b.size()) return false;
  for (int64_t i = 0; i < a.size(); ++i) {
    if (a.Bits(i) != b.Bits(i)) return false;
  }
  return true;
}

// NaN is what kernels found there.
bool Same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y); });
}

}  // namespace

MoeConfig ConfigOf(kernels::testing::World& world, int32_t channels) {
  MoeConfig config;
  config.layout = world.rank(0).layout;
  config.absent = world.config().absent;
  config.layout.shape.rank = config.Leader();
  config.membership_epoch = 7;
  config.channels = channels;
  config.timeout_us = 1'000'000'000;
  return config;
}

std::unique_ptr<KernelOperation> MakeKernelOperation(const CallSite& site, const kernels::DispatchSendArgs& send,
                                                     const kernels::DispatchReceiveArgs& receive,
                                                     DeliveryGuard* guard) {
  return Make(site, ExchangeKind::kDispatch, kernels::DispatchSend, send, kernels::DispatchReceive, receive, guard);
}

KernelLayer::KernelLayer(const WorldConfig& config, uint64_t seed, int32_t index, DeliveryGuard* guard)
    : expected_(config, seed),
      actual_(config, seed),
      absent_(config.absent),
      index_(index),
      guard_(guard),
      ranks_(config.ranks) {
  expected_.Dispatch();
  std::vector<Array> x, tokens;
  for (int32_t r = 0; r < config.ranks; ++r) {
    x.push_back(expected_.rank(r).x);
    tokens.push_back(expected_.rank(r).tokens);
    scalars_.push_back(expected_.rank(r).row_weights);
    MakeResults(ranks_[r], actual_.rank(r));
  }
  combined_ = expected_.Combine(tokens, true);
  redispatched_ = expected_.Redispatch(x, true, &tokens);
  back_ = expected_.Combine(tokens, false, &scalars_);
}

void KernelLayer::MakeResults(Rank& rank, const RankState& state) {
  const kernels::MoeShape& shape = state.layout.shape;
  const kernels::ElementType type = expected_.config().out_type;
  rank.combined = rank.back = Array(type, int64_t{state.t_rows} * shape.hidden);
  rank.redispatched = Array(type, shape.capacity * shape.hidden);
  rank.dots.assign(shape.capacity, std::nanf(""));
  rank.scalars.assign(int64_t{state.t_rows} * shape.top_k, std::nanf(""));
}

bool KernelLayer::Ready(int32_t rank) const {
  if (expected_.config().IsAbsent(rank)) return false;
  const auto& operations = ranks_[rank].operations;
  return operations.size() < kStages && (operations.empty() || operations.back()->ok());
}

bool KernelLayer::Done(int32_t rank) const {
  if (expected_.config().IsAbsent(rank)) return true;
  const auto& operations = ranks_[rank].operations;
  if (operations.empty() || operations.back()->finishes == 0) return false;
  return operations.size() == kStages || !operations.back()->ok();
}

void KernelLayer::SubmitNext(int32_t rank, Channel& channel) {
  auto& operations = ranks_[rank].operations;
  operations.push_back(MakeStage(rank, operations.size()));
  channel.Submit(operations.back()->exchange());
}

std::string KernelLayer::Failure(int32_t but_for) const {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (static_cast<int32_t>(r) == but_for) continue;
    const auto& operations = ranks_[r].operations;
    for (size_t stage = 0; stage < operations.size(); ++stage) {
      const KernelOperation& operation = *operations[stage];
      const char* wrong = nullptr;
      if (operation.finishes != 1) wrong = "has not ended exactly once";
      if (operation.ok()) wrong = Compare(static_cast<int32_t>(r), stage);
      if (wrong != nullptr) return fmt::format("layer {}, rank {}, stage {}: {}", index_, r, stage, wrong);
    }
  }
  return {};
}

const char* KernelLayer::Compare(int32_t r, size_t stage) const {
  const RankState& expected = expected_.rank(r);
  const RankState& actual = actual_.rank(r);
  const Rank& rank = ranks_[r];
  switch (stage) {
    case 0:
      if (actual.group_sizes != expected.group_sizes) return "group_sizes";
      if (actual.index != expected.index || actual.slot != expected.slot) return "routes";
      if (actual.rows != expected.rows || actual.token_ends != expected.token_ends) return "rounds";
      if (!Same(actual.row_weights, expected.row_weights)) return "row weights";
      if (!Same(actual.scales, expected.scales)) return "scales";
      return Same(actual.tokens, expected.tokens) ? nullptr : "tokens";
    case 1:
      return Same(rank.combined, combined_.out[r]) ? nullptr : "sums";
    case 2:
      if (!Same(rank.dots, redispatched_.dots[r])) return "dots";
      return Same(rank.redispatched, redispatched_.out[r]) ? nullptr : "rows of the gradient";
    default:
      if (!Same(rank.scalars, back_.scalars[r])) return "gradients of the weights";
      return Same(rank.back, back_.out[r]) ? nullptr : "sums of the gradient";
  }
}

std::unique_ptr<KernelOperation> KernelLayer::MakeStage(int32_t r, size_t stage) {
  // Calls of the layers share keys, so that only the serial tells them apart.
  const CallSite site{1 + index_ * uint64_t{kStages} + stage, stage};
  switch (stage) {
    case 0:
      return MakeDispatch(r, site);
    case 1:
      return MakeCombine(r, site, ExchangeKind::kCombine);
    case 2:
      return MakeRedispatch(r, site);
    default:
      return MakeCombine(r, site, ExchangeKind::kDispatchBack);
  }
}

std::unique_ptr<KernelOperation> KernelLayer::MakeDispatch(int32_t r, const CallSite& site) {
  RankState& state = actual_.rank(r);
  const int64_t cache_bytes = actual_.config().cache_bytes;
  return MakeKernelOperation(site,
                             {.layout = state.layout,
                              .stamp = {},
                              .t_rows = state.t_rows,
                              .x_type = state.x.type(),
                              .x = state.x.data(),
                              .scales = state.x_scales.data(),
                              .experts = state.experts.data(),
                              .weights = state.weights.data(),
                              .absent = absent_.empty() ? nullptr : absent_.data(),
                              .route = state.send_route(),
                              .cache_bytes = cache_bytes},
                             {.layout = state.layout,
                              .tokens_type = state.tokens.type(),
                              .tokens = state.tokens.data(),
                              .scales = state.scales.data(),
                              .weights = state.row_weights.data(),
                              .group_sizes = state.group_sizes.data(),
                              .route = state.receive_route(),
                              .dropped = &state.dropped,
                              .cache_bytes = cache_bytes},
                             guard_);
}

std::unique_ptr<KernelOperation> KernelLayer::MakeCombine(int32_t r, const CallSite& site, ExchangeKind kind) {
  RankState& state = actual_.rank(r);
  Rank& rank = ranks_[r];
  const int64_t cache_bytes = actual_.config().cache_bytes;
  const bool back = kind == ExchangeKind::kDispatchBack;
  const kernels::CombineSendArgs send{.layout = state.layout,
                                      .stamp = {},
                                      .kind = kind,
                                      .y_type = state.tokens.type(),
                                      .y = state.tokens.data(),
                                      .row_weights = back ? nullptr : state.row_weights.data(),
                                      .row_scalars = back ? scalars_[r].data() : nullptr,
                                      .route = state.receive_route(),
                                      .cache_bytes = cache_bytes};
  Array& out = back ? rank.back : rank.combined;
  const kernels::CombineReceiveArgs receive{.layout = state.layout,
                                            .kind = kind,
                                            .t_rows = state.t_rows,
                                            .route = state.send_route(),
                                            .out_type = out.type(),
                                            .out = out.data(),
                                            .scalars = back ? rank.scalars.data() : nullptr,
                                            .cache_bytes = cache_bytes};
  return Make(site, kind, kernels::CombineSend, send, kernels::CombineReceive, receive, guard_);
}

std::unique_ptr<KernelOperation> KernelLayer::MakeRedispatch(int32_t r, const CallSite& site) {
  RankState& state = actual_.rank(r);
  Rank& rank = ranks_[r];
  const int64_t cache_bytes = actual_.config().cache_bytes;
  const kernels::RedispatchSendArgs send{.layout = state.layout,
                                         .stamp = {},
                                         .t_rows = state.t_rows,
                                         .x_type = state.x.type(),
                                         .x = state.x.data(),
                                         .route = state.send_route(),
                                         .cache_bytes = cache_bytes};
  const kernels::RedispatchReceiveArgs receive{.layout = state.layout,
                                               .route = state.receive_route(),
                                               .row_weights = state.row_weights.data(),
                                               .y_type = state.tokens.type(),
                                               .y = state.tokens.data(),
                                               .out_type = rank.redispatched.type(),
                                               .out = rank.redispatched.data(),
                                               .dots = rank.dots.data(),
                                               .cache_bytes = cache_bytes};
  return Make(site, ExchangeKind::kRedispatch, kernels::RedispatchSend, send, kernels::RedispatchReceive, receive,
              guard_);
}

}  // namespace jax_fabric::moe::testing
