// Exchanges of whole MoE programs over a transport's ConformanceFabric. A transport's test instantiates MoeExchanges
// with the name of one.
#ifndef JAX_FABRIC_MOE_TESTING_EXCHANGE_SUITE_H_
#define JAX_FABRIC_MOE_TESTING_EXCHANGE_SUITE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "csrc/engine/domains/conformance/conformance_fabric.h"
#include "csrc/moe/testing/random_program.h"

namespace jax_fabric::moe::testing {

class MoeExchanges : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;
  // Over domains of the fabric, one a rank, against the kernels alone.
  void Run(RandomProgram program);

 private:
  std::unique_ptr<conformance::ConformanceFabric> fabric_;
};

}  // namespace jax_fabric::moe::testing

#endif  // JAX_FABRIC_MOE_TESTING_EXCHANGE_SUITE_H_
