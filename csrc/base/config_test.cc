#include "csrc/base/config.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace jax_fabric {
namespace {

using Environment = std::vector<std::string>;
using Groups = std::vector<std::vector<std::string>>;

TEST(Config, DefaultsWithoutVariables) {
  const Config config = ParseConfig(Environment{"PATH=/bin", "JAX_PLATFORMS=cpu"}).value();
  EXPECT_EQ(config.spin_us, -1);
  EXPECT_EQ(config.idle, Config::Idle::kAdaptive);
  EXPECT_EQ(config.log, LogLevel::kWarning);
  EXPECT_FALSE(config.soak);
  EXPECT_EQ(config.seeds.size(), 0u);
  EXPECT_EQ(config.secret_file, "");
  EXPECT_EQ(config.domain, "local");
  EXPECT_EQ(config.efa_provider, "efa");
  EXPECT_EQ(config.efa_address, "");
  EXPECT_TRUE(config.nics.groups.empty());
  EXPECT_TRUE(config.nics.exclude.empty());
  EXPECT_EQ(config.connectx_library, "");
  EXPECT_EQ(config.gdrcopy_library, "");
}

TEST(Config, ReadsEveryVariable) {
  const Config config =
      ParseConfig(Environment{"JAX_FABRIC_SPIN_US=0", "JAX_FABRIC_YIELD_US=7", "JAX_FABRIC_IDLE=spin",
                              "JAX_FABRIC_WORKERS=3", "JAX_FABRIC_LOG=debug", "JAX_FABRIC_SECRET_FILE=/run/key",
                              "JAX_FABRIC_DOMAIN=efa", "JAX_FABRIC_EFA_PROVIDER=tcp", "JAX_FABRIC_EFA_ADDRESS=::1",
                              "JAX_FABRIC_NICS=mlx5_1", "JAX_FABRIC_CONNECTX_LIBRARY=/opt/lib/libibverbs.so.1",
                              "JAX_FABRIC_GDRCOPY_LIBRARY=/opt/lib/libgdrapi.so.2"})
          .value();
  EXPECT_EQ(config.spin_us, 0);
  EXPECT_EQ(config.yield_us, 7);
  EXPECT_EQ(config.idle, Config::Idle::kSpin);
  EXPECT_EQ(config.workers, 3u);
  EXPECT_EQ(config.log, LogLevel::kDebug);
  EXPECT_EQ(config.secret_file, "/run/key");
  EXPECT_EQ(config.domain, "efa");
  EXPECT_EQ(config.efa_provider, "tcp");
  EXPECT_EQ(config.efa_address, "::1");
  EXPECT_EQ(config.nics.groups, (Groups{{"mlx5_1"}}));
  EXPECT_EQ(config.connectx_library, "/opt/lib/libibverbs.so.1");
  EXPECT_EQ(config.gdrcopy_library, "/opt/lib/libgdrapi.so.2");
}

TEST(Config, UnknownNamesListTheKnownOnes) {
  const auto config = ParseConfig(Environment{"JAX_FABRIC_SPINUS=5"});
  ASSERT_FALSE(config.has_value());
  EXPECT_NE(config.error().message.find("JAX_FABRIC_SPINUS"), std::string::npos);
  EXPECT_NE(config.error().message.find("JAX_FABRIC_SPIN_US"), std::string::npos);
}

TEST(Config, VariablesOfTheBuildAreNoMistake) {
  EXPECT_TRUE(ParseConfig(Environment{"JAX_FABRIC_CUDA=0", "JAX_FABRIC_BAZEL_ARGS=--jobs=2"}).has_value());
}

TEST(Config, SeedsAreOneOrARange) {
  const auto seeds = [](const std::string& value) {
    return ParseConfig(Environment{"JAX_FABRIC_SOAK=1", "JAX_FABRIC_SEEDS=" + value}).value().seeds;
  };
  EXPECT_EQ(seeds("17").first, 17u);
  EXPECT_EQ(seeds("17").end, 18u);
  EXPECT_EQ(seeds("20000-40000").first, 20000u);
  EXPECT_EQ(seeds("20000-40000").size(), 20000u);
}

TEST(Config, NicsAreForAllDevicesOrForEachOrExcluded) {
  const auto nics = [](const std::string& value) {
    return ParseConfig(Environment{"JAX_FABRIC_NICS=" + value}).value().nics;
  };
  EXPECT_EQ(nics("a,b").groups, (Groups{{"a", "b"}}));
  EXPECT_EQ(nics("a,b;c,d;a,c").groups, (Groups{{"a", "b"}, {"c", "d"}, {"a", "c"}}));
  EXPECT_TRUE(nics("a").exclude.empty());
  EXPECT_EQ(nics("^a,b,c,d,e").exclude, (std::vector<std::string>{"a", "b", "c", "d", "e"}));
  EXPECT_TRUE(nics("^a").groups.empty());
}

TEST(Config, MalformedValuesAreErrors) {
  for (const char* entry : {"JAX_FABRIC_SPIN_US=",       "JAX_FABRIC_SPIN_US=5ms",
                            "JAX_FABRIC_SPIN_US=-1",     "JAX_FABRIC_SPIN_US=99999999999999999999",
                            "JAX_FABRIC_IDLE=Spin",      "JAX_FABRIC_IDLE",
                            "JAX_FABRIC_LOG=2",          "JAX_FABRIC_WORKERS=1025",
                            "JAX_FABRIC_SOAK=",          "JAX_FABRIC_SEEDS=",
                            "JAX_FABRIC_SEEDS=7-7",      "JAX_FABRIC_SEEDS=7-",
                            "JAX_FABRIC_SEEDS=-7",       "JAX_FABRIC_SECRET_FILE=",
                            "JAX_FABRIC_DOMAIN=EFA",     "JAX_FABRIC_DOMAIN=tcp",
                            "JAX_FABRIC_EFA_PROVIDER=",  "JAX_FABRIC_EFA_ADDRESS=",
                            "JAX_FABRIC_NICS=",          "JAX_FABRIC_NICS=a,",
                            "JAX_FABRIC_NICS=a;",        "JAX_FABRIC_NICS=a,a",
                            "JAX_FABRIC_NICS=a,b,c,d,e", "JAX_FABRIC_NICS=^",
                            "JAX_FABRIC_NICS=^a,a"}) {
    const auto config = ParseConfig(Environment{entry});
    ASSERT_FALSE(config.has_value()) << entry;
    EXPECT_EQ(config.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(config.error().message.find("give "), std::string::npos) << config.error().message;
  }
}

}  // namespace
}  // namespace jax_fabric
