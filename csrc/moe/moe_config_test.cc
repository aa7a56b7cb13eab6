#include "csrc/moe/moe_config.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "csrc/moe/announcement_ring.h"

namespace jax_fabric::moe {
namespace {

MoeConfig Valid() {
  MoeConfig config;
  kernels::MoeShape& shape = config.layout.shape;
  shape.ranks = 3;
  shape.rank = 1;
  shape.experts = 8;
  shape.experts_per_rank = 3;
  shape.max_tokens = 16;
  shape.top_k = 2;
  shape.hidden = 64;
  shape.capacity = 96;
  return config;
}

using Change = std::function<void(MoeConfig&)>;
kernels::MoeShape& Shape(MoeConfig& config) { return config.layout.shape; }

TEST(MoeConfig, AcceptsWhatIsLegal) {
  EXPECT_TRUE(Valid().Validate().has_value());
  const std::vector<Change> changes = {
      [](MoeConfig& c) { Shape(c).rank = 0; },
      [](MoeConfig& c) { Shape(c).rank = 2; },
      [](MoeConfig& c) { Shape(c).max_tokens = 1; },
      [](MoeConfig& c) { Shape(c).private_tokens = 1; },
      [](MoeConfig& c) { Shape(c).private_tokens = 16; },
      [](MoeConfig& c) { Shape(c).top_k = 8; },
      [](MoeConfig& c) { Shape(c).hidden = 1; },
      [](MoeConfig& c) { Shape(c).capacity = 1; },
      [](MoeConfig& c) { Shape(c).capacity = INT32_MAX; },
      [](MoeConfig& c) { c.channels = 1; },
      [](MoeConfig& c) { c.channels = 64; },
      [](MoeConfig& c) { c.timeout_us = 1; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    MoeConfig config = Valid();
    changes[i](config);
    EXPECT_TRUE(config.Validate().has_value()) << i << config.Validate().error().message;
  }
}

TEST(MoeConfig, NamesTheArgumentAndTheValue) {
  struct Case {
    Change change;
    std::string message;
  };
  const std::vector<Case> cases = {
      {[](MoeConfig& c) { Shape(c).ranks = 0; }, "ranks=0: must be at least 1"},
      {[](MoeConfig& c) { Shape(c).rank = 3; }, "rank=3: must be in [0, ranks)"},
      {[](MoeConfig& c) { Shape(c).rank = -1; }, "rank=-1: must be in [0, ranks)"},
      {[](MoeConfig& c) { Shape(c).experts = 0; }, "num_experts=0: must be at least 1"},
      {[](MoeConfig& c) { Shape(c).experts_per_rank = 4; }, "experts_per_rank=4: must be ceil(num_experts / ranks)"},
      {[](MoeConfig& c) { Shape(c).max_tokens = 0; }, "max_tokens=0: must be at least 1"},
      {[](MoeConfig& c) { Shape(c).private_tokens = 0; }, "private_tokens=0: must be at least 1"},
      {[](MoeConfig& c) { Shape(c).top_k = 0; }, "top_k=0: must be in [1, num_experts]"},
      {[](MoeConfig& c) { Shape(c).top_k = 9; }, "top_k=9: must be in [1, num_experts]"},
      {[](MoeConfig& c) { Shape(c).hidden = 0; }, "hidden=0: must be at least 1"},
      {[](MoeConfig& c) { Shape(c).capacity = 0; }, "capacity=0: must be in [1, 2^31)"},
      {[](MoeConfig& c) { Shape(c).capacity = int64_t{1} << 31; }, "capacity=2147483648: must be in [1, 2^31)"},
      {[](MoeConfig& c) { c.channels = 0; }, "channels=0: must be in [1, 64]"},
      {[](MoeConfig& c) { c.channels = 65; }, "channels=65: must be in [1, 64]"},
      {[](MoeConfig& c) { c.timeout_us = 0; }, "timeout_us=0: must be at least 1"},
      {[](MoeConfig& c) { c.layout.combine_type = kernels::ElementType::kFloat8E4m3fn; },
       "combine_type=3: must be float32, bfloat16 or float16"},
      {[](MoeConfig& c) { c.layout.redispatch_type = kernels::ElementType::kFloat8E4m3fn; },
       "redispatch_type=3: must be float32, bfloat16 or float16"},
      {[](MoeConfig& c) { c.layout.quantised = true; },
       "quantised=1: must be true where dispatch_type is float8_e4m3fn, and only there"},
      {[](MoeConfig& c) { c.layout.dispatch_type = kernels::ElementType::kFloat8E4m3fn; },
       "quantised=0: must be true where dispatch_type is float8_e4m3fn, and only there"},
  };
  for (const Case& each : cases) {
    MoeConfig config = Valid();
    each.change(config);
    const Status status = config.Validate();
    ASSERT_FALSE(status.has_value()) << each.message;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(status.error().message, each.message);
  }
}

// Every rank computes the same, and everything that changes the meaning of a message changes it.
TEST(MoeConfig, Hash) {
  const std::vector<Change> same = {[](MoeConfig& c) { Shape(c).rank = 2; }, [](MoeConfig& c) { c.timeout_us = 5; },
                                    [](MoeConfig& c) { Shape(c).private_tokens = 16; }};
  const std::vector<Change> other = {
      [](MoeConfig& c) { Shape(c).ranks = 4; },
      [](MoeConfig& c) { Shape(c).experts = 9; },
      [](MoeConfig& c) { Shape(c).experts_per_rank = 4; },
      [](MoeConfig& c) { Shape(c).max_tokens = 17; },
      [](MoeConfig& c) { Shape(c).top_k = 3; },
      [](MoeConfig& c) { Shape(c).hidden = 65; },
      [](MoeConfig& c) { Shape(c).capacity = 97; },
      [](MoeConfig& c) { Shape(c).private_tokens = 15; },
      [](MoeConfig& c) { c.layout.dispatch_type = kernels::ElementType::kBfloat16; },
      [](MoeConfig& c) { c.layout.combine_type = kernels::ElementType::kBfloat16; },
      [](MoeConfig& c) { c.layout.redispatch_type = kernels::ElementType::kBfloat16; },
      [](MoeConfig& c) { c.layout.quantised = true; },
      [](MoeConfig& c) { c.channels = 3; },
      [](MoeConfig& c) { c.drop_overflow = true; },
  };
  std::set<uint64_t> hashes = {Valid().Hash()};
  for (const Change& change : same) {
    MoeConfig config = Valid();
    change(config);
    hashes.insert(config.Hash());
  }
  EXPECT_EQ(hashes.size(), 1u);
  for (const Change& change : other) {
    MoeConfig config = Valid();
    change(config);
    hashes.insert(config.Hash());
  }
  EXPECT_EQ(hashes.size(), 1 + other.size());
}

// Channels, then rings, without gaps or overlap.
TEST(MoeConfig, Memory) {
  MoeConfig config = Valid();
  config.channels = 3;
  EXPECT_EQ(config.ChannelOffset(0), 0);
  for (int32_t channel = 1; channel <= 3; ++channel) {
    EXPECT_EQ(config.ChannelOffset(channel) - config.ChannelOffset(channel - 1), config.layout.ChannelBytes());
    EXPECT_EQ(config.RingOffset(channel) - config.RingOffset(channel - 1), AnnouncementRing::kBytes);
  }
  EXPECT_EQ(config.RingOffset(0), config.ChannelOffset(3));
  EXPECT_EQ(config.MemoryBytes(), config.RingOffset(3));
  EXPECT_EQ(config.RingOffset(0) % 256, 0);
  EXPECT_EQ(config.layout.SlotBytes() % 256, 0);
}

// A slot has room for quantised rows with their scales, and for the rows of the gradient, which are not.
TEST(MoeConfig, QuantisedMemory) {
  MoeConfig config = Valid();
  Shape(config).hidden = 300;
  Shape(config).max_tokens = 1000;
  config.layout.combine_type = kernels::ElementType::kBfloat16;
  config.layout.redispatch_type = kernels::ElementType::kBfloat16;
  const int64_t unquantised_rows = 1000 * 608;
  config.layout.dispatch_type = kernels::ElementType::kFloat8E4m3fn;
  config.layout.quantised = true;
  ASSERT_TRUE(config.Validate().has_value());
  EXPECT_EQ(config.layout.ScalesOfRow(), 3);
  EXPECT_EQ(config.layout.ScalesOffset(), 304);
  EXPECT_EQ(config.layout.DispatchRowBytes(), 320);
  EXPECT_GE(config.layout.SlotBytes(), unquantised_rows);
  EXPECT_LT(config.layout.SlotBytes(), unquantised_rows + 20'000);
  Shape(config).hidden = 1;
  EXPECT_EQ(config.layout.DispatchRowBytes(), 64);
  EXPECT_GE(config.layout.SlotBytes(),
            config.layout.DispatchMessageBytes(1000, 1000 * Shape(config).LocalTopK(), 1000));
}

// 64 bits throughout: 131,072 tokens of 7,168 on 64 ranks.
TEST(MoeConfig, LargeMemory) {
  MoeConfig config = Valid();
  kernels::MoeShape& shape = Shape(config);
  shape.ranks = 64;
  shape.experts = 256;
  shape.experts_per_rank = 4;
  shape.top_k = 8;
  shape.max_tokens = 131'072;
  shape.hidden = 7168;
  shape.capacity = int64_t{64} * 131'072;
  ASSERT_TRUE(config.Validate().has_value());
  const int64_t rows = int64_t{131'072} * 7168 * 4;
  EXPECT_GT(config.layout.SlotBytes(), rows);
  EXPECT_LT(config.layout.SlotBytes(), rows + (int64_t{1} << 24));
  EXPECT_EQ(config.MemoryBytes(), 2 * 2 * 64 * config.layout.SlotBytes() + 2 * AnnouncementRing::kBytes);
}

}  // namespace
}  // namespace jax_fabric::moe
