// What a build without libibverbs says.
#include <gtest/gtest.h>

#include "csrc/engine/domains/connectx/connectx_domain.h"

namespace jax_fabric {
namespace {

TEST(ConnectXDisabled, SaysHowItWasBuilt) {
  const auto domain = CreateConnectXDomain(ConnectXDomainOptions());
  ASSERT_FALSE(domain.has_value());
  EXPECT_EQ(domain.error().code, ErrorCode::kUnimplemented);
  EXPECT_NE(domain.error().message.find("JAX_FABRIC_RDMA=0"), std::string::npos) << domain.error().message;
}

}  // namespace
}  // namespace jax_fabric
