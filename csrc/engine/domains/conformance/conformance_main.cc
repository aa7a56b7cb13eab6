// main() of every conformance test: the suite, or one node of it (see RemoteNode::StartProcess).
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "csrc/engine/domains/conformance/node_server.h"

int main(int argc, char** argv) {
  using jax_fabric::UniqueFd;
  namespace conformance = jax_fabric::conformance;
  if (argc == 6 && std::string_view(argv[1]) == "--conformance_node") {
    conformance::DomainShape shape;
    shape.max_outstanding = static_cast<uint32_t>(std::strtoul(argv[4], nullptr, 10));
    shape.max_receives = static_cast<uint32_t>(std::strtoul(argv[5], nullptr, 10));
    return conformance::RunNodeServer(UniqueFd(std::atoi(argv[3])), argv[2], shape);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
