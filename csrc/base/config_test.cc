#include "csrc/base/config.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace jax_fabric {
namespace {

using Environment = std::vector<std::string>;

TEST(Config, DefaultsWithoutVariables) {
  const Config config = ParseConfig(Environment{"PATH=/bin", "JAX_PLATFORMS=cpu"}).value();
  EXPECT_EQ(config.spin_us, -1);
  EXPECT_EQ(config.idle, Config::Idle::kAdaptive);
  EXPECT_EQ(config.log, LogLevel::kWarning);
}

TEST(Config, ReadsEveryVariable) {
  const Config config = ParseConfig(Environment{"JAX_FABRIC_SPIN_US=0", "JAX_FABRIC_YIELD_US=7", "JAX_FABRIC_IDLE=spin",
                                                "JAX_FABRIC_WORKERS=3", "JAX_FABRIC_LOG=debug"})
                            .value();
  EXPECT_EQ(config.spin_us, 0);
  EXPECT_EQ(config.yield_us, 7);
  EXPECT_EQ(config.idle, Config::Idle::kSpin);
  EXPECT_EQ(config.workers, 3u);
  EXPECT_EQ(config.log, LogLevel::kDebug);
}

TEST(Config, UnknownNamesListTheKnownOnes) {
  const auto config = ParseConfig(Environment{"JAX_FABRIC_SPINUS=5"});
  ASSERT_FALSE(config.has_value());
  EXPECT_NE(config.error().message.find("JAX_FABRIC_SPINUS"), std::string::npos);
  EXPECT_NE(config.error().message.find("JAX_FABRIC_SPIN_US"), std::string::npos);
  EXPECT_TRUE(ParseConfig(Environment{"JAX_FABRIC_SPINUS=5"}, Environment{"JAX_FABRIC_SPINUS"}).has_value());
}

TEST(Config, MalformedValuesAreErrors) {
  for (const char* entry : {"JAX_FABRIC_SPIN_US=", "JAX_FABRIC_SPIN_US=5ms", "JAX_FABRIC_SPIN_US=-1",
                            "JAX_FABRIC_SPIN_US=99999999999999999999", "JAX_FABRIC_IDLE=Spin", "JAX_FABRIC_IDLE",
                            "JAX_FABRIC_LOG=2", "JAX_FABRIC_WORKERS=1025"}) {
    const auto config = ParseConfig(Environment{entry});
    ASSERT_FALSE(config.has_value()) << entry;
    EXPECT_EQ(config.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(config.error().message.find("give "), std::string::npos) << config.error().message;
  }
}

}  // namespace
}  // namespace jax_fabric
