// The four exchanges with their kernels, through whole engines, against the same kernels run one after the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/cpu/kernels_testing.h"
#include "csrc/moe/channel.h"
#include "csrc/moe/exchanges.h"
#include "csrc/moe/testing/moe_fabric.h"

namespace jax_fabric::moe {
namespace {

using kernels::ExchangeKind;
using kernels::testing::Array;
using kernels::testing::RankState;
using kernels::testing::Routing;
using kernels::testing::World;
using kernels::testing::WorldConfig;
using testing::FabricOptions;
using testing::Mapping;
using testing::MoeFabric;
using testing::Transport;

class Operation {
 public:
  virtual ~Operation() = default;
  virtual ExchangeOperation* exchange() = 0;
  bool finished = false;
  Error error;
};

template <typename SendArgs, typename ReceiveArgs>
class Exchange final : public KernelExchange<SendArgs, ReceiveArgs>, public Operation {
 public:
  using KernelExchange<SendArgs, ReceiveArgs>::KernelExchange;
  ExchangeOperation* exchange() override { return this; }
  void Finish(const Error* failure) override {
    finished = true;
    if (failure != nullptr) error = *failure;
  }
};

template <typename SendArgs, typename ReceiveArgs>
std::unique_ptr<Operation> Make(const CallSite& site, ExchangeKind kind, void (*send)(const SendArgs&),
                                const SendArgs& send_args, void (*receive)(const ReceiveArgs&),
                                const ReceiveArgs& receive_args) {
  const typename KernelExchange<SendArgs, ReceiveArgs>::Kernels kernels{send, send_args, receive, receive_args};
  return std::make_unique<Exchange<SendArgs, ReceiveArgs>>(site, 1, kind, 99, kernels);
}

WorldConfig RandomWorld(int32_t ranks, std::mt19937_64& random) {
  WorldConfig config;
  config.ranks = ranks;
  config.experts = 1 + random() % (2 * ranks + 3);
  config.max_tokens = 6;
  config.top_k = 1 + random() % std::min(config.experts, 4);
  config.hidden = 1 + random() % 20;
  if (random() % 2 == 0) config.private_tokens = 1 + random() % config.max_tokens;
  config.routing = kernels::testing::kAllRoutings[random() % std::size(kernels::testing::kAllRoutings)];
  constexpr kernels::ElementType kTypes[] = {kernels::ElementType::kFloat32, kernels::ElementType::kBfloat16,
                                             kernels::ElementType::kFloat8E4m3fn};
  config.dispatch_type = kTypes[random() % std::size(kTypes)];
  config.quantised = config.dispatch_type == kernels::ElementType::kFloat8E4m3fn;
  if (random() % 4 == 0) {
    for (int32_t r = 0; r < ranks; ++r) config.absent.push_back(random() % 3 == 0);
    config.absent[random() % ranks] = 0;
  }
  return config;
}

MoeConfig ConfigOf(World& world, int32_t channels) {
  MoeConfig config;
  config.layout = world.rank(0).layout;
  config.absent = world.config().absent;
  config.layout.shape.rank = config.Leader();
  config.membership_epoch = 7;
  config.channels = channels;
  config.timeout_us = 1'000'000'000;
  return config;
}

// A layer with its gradient: dispatch, combine of the tokens, redispatch of x, dispatch-back of the tokens. `actual`
// starts from the same inputs as `expected`.
class Layer {
 public:
  static constexpr int kStages = 4;

  Layer(const WorldConfig& config, uint64_t seed, int32_t index)
      : expected_(config, seed), actual_(config, seed), absent_(config.absent), index_(index) {
    expected_.Dispatch();
    std::vector<Array> x, tokens;
    for (int32_t r = 0; r < config.ranks; ++r) {
      x.push_back(expected_.rank(r).x);
      tokens.push_back(expected_.rank(r).tokens);
      scalars_.push_back(expected_.rank(r).row_weights);
    }
    combined_ = expected_.Combine(tokens, true);
    redispatched_ = expected_.Redispatch(x, true, &tokens);
    back_ = expected_.Combine(tokens, false, &scalars_);
    for (int32_t r = 0; r < config.ranks; ++r) {
      ranks_.push_back(std::make_unique<Rank>());
      Rank& rank = *ranks_.back();
      const kernels::MoeShape& shape = actual_.rank(r).layout.shape;
      rank.combined = rank.back = Array(config.out_type, int64_t{actual_.rank(r).t_rows} * shape.hidden);
      rank.redispatched = Array(config.out_type, shape.capacity * shape.hidden);
      rank.dots.resize(shape.capacity);
      rank.scalars.resize(int64_t{actual_.rank(r).t_rows} * shape.top_k);
    }
  }

  bool Ready(int32_t rank) const {
    const auto& operations = ranks_[rank]->operations;
    return operations.size() < kStages && (operations.empty() || operations.back()->finished);
  }
  bool Done(int32_t rank) const {
    const auto& operations = ranks_[rank]->operations;
    return operations.size() == kStages && operations.back()->finished;
  }

  void SubmitNext(int32_t rank, Channel& channel) {
    auto& operations = ranks_[rank]->operations;
    operations.push_back(MakeStage(rank, operations.size()));
    channel.Submit(operations.back()->exchange());
  }

  void Check() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (expected_.config().IsAbsent(r)) continue;
      Rank& rank = *ranks_[r];
      for (const auto& each : rank.operations) ASSERT_EQ(each->error.message, "");
      RankState& expected = expected_.rank(r);
      RankState& actual = actual_.rank(r);
      ASSERT_EQ(actual.group_sizes, expected.group_sizes);
      ASSERT_EQ(actual.index, expected.index);
      ASSERT_EQ(actual.slot, expected.slot);
      ASSERT_EQ(actual.rows, expected.rows);
      const int64_t rows = expected.routed_rows();
      ExpectEqual(actual.tokens, expected.tokens, rows * expected.layout.shape.hidden);
      ExpectEqual(rank.combined, combined_.out[r], combined_.out[r].size());
      ExpectEqual(rank.redispatched, redispatched_.out[r], redispatched_.out[r].size());
      ExpectEqual(rank.back, back_.out[r], back_.out[r].size());
      for (int64_t i = 0; i < rows; ++i) {
        ASSERT_EQ(actual.row_weights[i], expected.row_weights[i]);
        ASSERT_EQ(rank.dots[i], redispatched_.dots[r][i]);
      }
      ASSERT_EQ(rank.scalars, back_.scalars[r]);
    }
  }

 private:
  struct Rank {
    std::vector<std::unique_ptr<Operation>> operations;
    Array combined, redispatched, back;
    std::vector<float> dots, scalars;
  };

  static void ExpectEqual(const Array& actual, const Array& expected, int64_t count) {
    ASSERT_EQ(actual.size(), expected.size());
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(actual.Bits(i), expected.Bits(i)) << i;
  }

  std::unique_ptr<Operation> MakeStage(int32_t r, size_t stage) {
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

  std::unique_ptr<Operation> MakeDispatch(int32_t r, const CallSite& site) {
    RankState& state = actual_.rank(r);
    const kernels::DispatchSendArgs send{.layout = state.layout,
                                         .stamp = {},
                                         .t_rows = state.t_rows,
                                         .x_type = state.x.type(),
                                         .x = state.x.data(),
                                         .experts = state.experts.data(),
                                         .weights = state.weights.data(),
                                         .absent = absent_.empty() ? nullptr : absent_.data(),
                                         .route = state.send_route()};
    const kernels::DispatchReceiveArgs receive{.layout = state.layout,
                                               .tokens_type = state.tokens.type(),
                                               .tokens = state.tokens.data(),
                                               .weights = state.row_weights.data(),
                                               .group_sizes = state.group_sizes.data(),
                                               .route = state.receive_route(),
                                               .dropped = &state.dropped};
    return Make(site, ExchangeKind::kDispatch, kernels::DispatchSend, send, kernels::DispatchReceive, receive);
  }

  std::unique_ptr<Operation> MakeCombine(int32_t r, const CallSite& site, ExchangeKind kind) {
    RankState& state = actual_.rank(r);
    Rank& rank = *ranks_[r];
    const bool back = kind == ExchangeKind::kDispatchBack;
    const kernels::CombineSendArgs send{.layout = state.layout,
                                        .stamp = {},
                                        .kind = kind,
                                        .y_type = state.tokens.type(),
                                        .y = state.tokens.data(),
                                        .row_weights = back ? nullptr : state.row_weights.data(),
                                        .row_scalars = back ? scalars_[r].data() : nullptr,
                                        .route = state.receive_route()};
    Array& out = back ? rank.back : rank.combined;
    const kernels::CombineReceiveArgs receive{.layout = state.layout,
                                              .t_rows = state.t_rows,
                                              .route = state.send_route(),
                                              .out_type = out.type(),
                                              .out = out.data(),
                                              .scalars = back ? rank.scalars.data() : nullptr};
    return Make(site, kind, kernels::CombineSend, send, kernels::CombineReceive, receive);
  }

  std::unique_ptr<Operation> MakeRedispatch(int32_t r, const CallSite& site) {
    RankState& state = actual_.rank(r);
    Rank& rank = *ranks_[r];
    const kernels::RedispatchSendArgs send{.layout = state.layout,
                                           .stamp = {},
                                           .t_rows = state.t_rows,
                                           .x_type = state.x.type(),
                                           .x = state.x.data(),
                                           .route = state.send_route()};
    const kernels::RedispatchReceiveArgs receive{.layout = state.layout,
                                                 .route = state.receive_route(),
                                                 .row_weights = state.row_weights.data(),
                                                 .y_type = state.tokens.type(),
                                                 .y = state.tokens.data(),
                                                 .out_type = rank.redispatched.type(),
                                                 .out = rank.redispatched.data(),
                                                 .dots = rank.dots.data()};
    return Make(site, ExchangeKind::kRedispatch, kernels::RedispatchSend, send, kernels::RedispatchReceive, receive);
  }

  World expected_;
  World actual_;
  const std::vector<uint8_t> absent_;
  const int32_t index_;
  std::vector<std::vector<float>> scalars_;
  World::CombineResult combined_, back_;
  World::RedispatchResult redispatched_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

class KernelExchanges : public ::testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, KernelExchanges, ::testing::Range<uint64_t>(0, 150));

TEST_P(KernelExchanges, EqualToKernelsAlone) {
  std::mt19937_64 random(GetParam());
  constexpr int32_t kRanks[] = {1, 2, 3, 5, 8};
  constexpr int32_t kChannels = 2;
  FabricOptions options;
  options.ranks = kRanks[random() % std::size(kRanks)];
  options.seed = GetParam();
  options.transport = random() % 3 == 0 ? Transport::kLocal : Transport::kSimulated;
  options.mapping = static_cast<Mapping>(random() % 3);
  options.again_probability = 0.1;
  options.jitter_us = 4;
  options.inline_executors = random() % 2 == 0;
  const WorldConfig config = RandomWorld(options.ranks, random);
  SCOPED_TRACE(options.Describe() + " " + config.Describe());
  std::vector<std::unique_ptr<Layer>> layers;
  for (int32_t i = 0; i < 5; ++i) layers.push_back(std::make_unique<Layer>(config, random(), i));
  World shape(config, 1);
  MoeFabric fabric(options, ConfigOf(shape, kChannels));
  fabric.Connect();
  const auto done = [&] {
    for (const auto& layer : layers) {
      for (int32_t rank = 0; rank < options.ranks; ++rank) {
        if (!config.IsAbsent(rank) && !layer->Done(rank)) return false;
      }
    }
    return true;
  };
  for (int step = 0; step < 1'000'000 && !done(); ++step) {
    fabric.StepAny();
    if (!fabric.Chance(0.2)) continue;
    const int32_t rank = static_cast<int32_t>(random() % options.ranks);
    const size_t pick = random() % layers.size();
    if (!config.IsAbsent(rank) && layers[pick]->Ready(rank))
      layers[pick]->SubmitNext(rank, fabric.channel(rank, pick % kChannels));
  }
  const Error* error = fabric.context(ConfigOf(shape, kChannels).Leader()).error();
  ASSERT_EQ(error, nullptr) << error->message;
  ASSERT_TRUE(done());
  for (const auto& layer : layers) layer->Check();
}

// An overflow of one rank is an error on all of them, in the same words.
TEST(KernelExchangeOverflow, RaisedOnAllRanks) {
  for (const bool drop : {false, true}) {
    for (const Mapping mapping : {Mapping::kNone, Mapping::kAll}) {
      WorldConfig world_config;
      world_config.ranks = 3;
      world_config.experts = 6;
      world_config.max_tokens = 6;
      world_config.top_k = 2;
      world_config.capacity = 7;
      world_config.routing = Routing::kLastExpert;
      world_config.odd_ids = false;
      world_config.full_batches = true;
      World world(world_config, 3);
      MoeConfig config = ConfigOf(world, 1);
      config.drop_overflow = drop;
      std::vector<std::unique_ptr<Operation>> all;
      MoeFabric fabric({.ranks = 3, .mapping = mapping}, config);
      fabric.Connect();
      for (int32_t rank = 0; rank < 3; ++rank) {
        RankState& state = world.rank(rank);
        const kernels::DispatchSendArgs send{.layout = state.layout,
                                             .stamp = {},
                                             .t_rows = state.t_rows,
                                             .x_type = state.x.type(),
                                             .x = state.x.data(),
                                             .experts = state.experts.data(),
                                             .weights = state.weights.data(),
                                             .route = state.send_route()};
        const kernels::DispatchReceiveArgs receive{.layout = state.layout,
                                                   .tokens = state.tokens.data(),
                                                   .weights = state.row_weights.data(),
                                                   .group_sizes = state.group_sizes.data(),
                                                   .route = state.receive_route(),
                                                   .drop_overflow = drop,
                                                   .dropped = &state.dropped};
        all.push_back(
            Make({1, 1}, ExchangeKind::kDispatch, kernels::DispatchSend, send, kernels::DispatchReceive, receive));
        fabric.channel(rank, 0).Submit(all.back()->exchange());
      }
      EXPECT_TRUE(fabric.StepUntil([&] { return all[0]->finished && all[1]->finished && all[2]->finished; }));
      for (const auto& each : all) {
        if (drop) {
          EXPECT_EQ(each->error.message, "");
          continue;
        }
        EXPECT_EQ(each->error.code, ErrorCode::kResourceExhausted);
        EXPECT_EQ(each->error.message,
                  "moe dispatch (channel 0, call 1): 18 rows were routed to the experts of rank 2, and capacity=7 "
                  "rows. Raise capacity, or pass on_overflow=\"drop\".");
      }
      EXPECT_EQ(world.rank(2).dropped, drop ? 11 : -1);
    }
  }
}

}  // namespace
}  // namespace jax_fabric::moe
