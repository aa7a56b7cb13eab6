// What a build without libfabric says.
#include <gtest/gtest.h>

#include "csrc/engine/domains/efa/efa_domain.h"

namespace jax_fabric {
namespace {

TEST(EfaDisabled, SaysHowItWasBuilt) {
  const auto domain = CreateEfaDomain(EfaDomainOptions());
  ASSERT_FALSE(domain.has_value());
  EXPECT_EQ(domain.error().code, ErrorCode::kUnimplemented);
  EXPECT_NE(domain.error().message.find("JAX_FABRIC_RDMA=0"), std::string::npos) << domain.error().message;
}

}  // namespace
}  // namespace jax_fabric
