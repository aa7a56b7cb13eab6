#include "csrc/moe/testing/exchange_suite.h"

#include <cstdint>
#include <utility>

namespace jax_fabric::moe::testing {

using kernels::ElementType;

void MoeExchanges::SetUp() {
  fabric_ = conformance::MakeConformanceFabric(GetParam());
  ASSERT_TRUE(fabric_) << GetParam();
}

void MoeExchanges::Run(RandomProgram program) {
  program.fault = RandomProgram::Fault::kNone;
  program.fabric.transport = Transport::kReal;
  program.fabric.mapping = Mapping::kNone;
  program.fabric.make_domain = [this]() -> std::unique_ptr<Domain> {
    auto domain = fabric_->CreateDomain({});
    EXPECT_TRUE(domain.has_value()) << domain.error().message;
    return *std::move(domain);
  };
  EXPECT_EQ(RunProgram(program).failure, "");
}

// Routing, types, rounds, layers, channels, gradients.
TEST_P(MoeExchanges, RandomProgramsOfTwoAndFourRanks) {
  constexpr int kEach = 16;
  int of_two = 0, of_four = 0;
  for (uint64_t seed = 0; of_two < kEach || of_four < kEach; ++seed) {
    const RandomProgram program = RandomProgram::Draw(seed);
    const int32_t ranks = program.fabric.ranks;
    if (!(ranks == 2 && of_two < kEach) && !(ranks == 4 && of_four < kEach)) continue;
    ++(ranks == 2 ? of_two : of_four);
    SCOPED_TRACE(seed);
    Run(program);
    if (HasFailure()) return;
  }
}

// A layer as models have them: messages of many packets, in more than one round.
TEST_P(MoeExchanges, ALayerOfDecode) {
  for (const int32_t ranks : {2, 4}) {
    RandomProgram program;
    program.fabric.ranks = ranks;
    program.world.ranks = ranks;
    program.world.experts = 16;
    program.world.max_tokens = 32;
    program.world.top_k = 4;
    program.world.hidden = 512;
    program.world.private_tokens = 8;
    program.world.full_batches = true;
    program.world.x_type = program.world.dispatch_type = program.world.tokens_type = ElementType::kBfloat16;
    program.layers = 2;
    program.submit_probability = 0.5;
    SCOPED_TRACE(ranks);
    Run(program);
  }
}

}  // namespace jax_fabric::moe::testing
