// The four exchanges with their kernels, through whole engines, against the same kernels run one after the other.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/kernels/cpu/kernels_testing.h"
#include "csrc/moe/testing/kernel_layer.h"
#include "csrc/moe/testing/moe_fabric.h"
#include "csrc/moe/testing/random_program.h"

namespace jax_fabric::moe {
namespace {

using kernels::testing::RankState;
using kernels::testing::Routing;
using kernels::testing::World;
using kernels::testing::WorldConfig;
using testing::ConfigOf;
using testing::KernelOperation;
using testing::MakeKernelOperation;
using testing::Mapping;
using testing::MoeFabric;
using testing::RandomProgram;
using testing::RunProgram;
using testing::Transport;

// Over the local domain, stepped; random_programs_test.cc has the simulated one.
class KernelExchanges : public ::testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, KernelExchanges, ::testing::Range<uint64_t>(0, 50));

TEST_P(KernelExchanges, EqualToKernelsAlone) {
  RandomProgram program = RandomProgram::Draw(GetParam());
  program.fabric.transport = Transport::kLocal;
  program.fault = RandomProgram::Fault::kNone;
  EXPECT_EQ(RunProgram(program).failure, "");
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
      std::vector<std::unique_ptr<KernelOperation>> all;
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
        all.push_back(MakeKernelOperation({1, 1}, send, receive));
        fabric.channel(rank, 0).Submit(all.back()->exchange());
      }
      EXPECT_TRUE(fabric.StepUntil([&] { return all[0]->finishes + all[1]->finishes + all[2]->finishes == 3; }));
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
