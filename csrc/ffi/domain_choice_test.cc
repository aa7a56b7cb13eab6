#include "csrc/ffi/domain_choice.h"

#include <gtest/gtest.h>

namespace jax_fabric::ffi_layer {
namespace {

Config Environment(const std::string& domain, const std::string& provider) {
  Config config;
  config.domain = domain;
  config.efa_provider = provider;
  return config;
}

TEST(DomainChoice, TheMachinesMemoryUnlessSomebodySaysOtherwise) {
  EXPECT_EQ(DomainChoice::Make({}, {}, Config())->kind, DomainKind::kLocal);
  const DomainChoice choice = DomainChoice::Make({}, {}, Environment("efa", "tcp")).value();
  EXPECT_EQ(choice.kind, DomainKind::kEfa);
  EXPECT_EQ(choice.provider, "tcp;ofi_rxm");
}

TEST(DomainChoice, TheProgramComesBeforeTheEnvironment) {
  EXPECT_EQ(DomainChoice::Make("local", {}, Environment("efa", "tcp"))->kind, DomainKind::kLocal);
  EXPECT_EQ(DomainChoice::Make("efa", "shm", Environment("local", "tcp"))->provider, "shm");
  EXPECT_EQ(DomainChoice::Make("efa", {}, Config())->provider, "efa");
}

TEST(DomainChoice, TcpListensOnThisMachineAloneUnlessToldWhere) {
  EXPECT_EQ(DomainChoice::Make("efa", "tcp", Config())->source_address, "127.0.0.1");
  EXPECT_EQ(DomainChoice::Make("efa", "tcp;ofi_rxm", Config())->source_address, "127.0.0.1");
  EXPECT_EQ(DomainChoice::Make("efa", "efa", Config())->source_address, "");
  Config config;
  config.efa_address = "10.0.0.5";
  EXPECT_EQ(DomainChoice::Make("efa", "tcp", config)->source_address, "10.0.0.5");
}

TEST(DomainChoice, ErrorsNameArgumentAndValue) {
  const auto message = [](const Result<DomainChoice>& choice) {
    return choice.has_value() ? "no error" : choice.error().message;
  };
  EXPECT_EQ(message(DomainChoice::Make("tcp", {}, Config())), "domain='tcp': must be 'local', 'efa' or 'connectx'");
  EXPECT_EQ(message(DomainChoice::Make("local", "tcp", Config())), "provider='tcp': only domain='efa' has providers");
  EXPECT_EQ(message(DomainChoice::Make("connectx", "tcp", Config())),
            "provider='tcp': only domain='efa' has providers");
  EXPECT_EQ(message(DomainChoice::Make("efa", "", Config())), "provider='': give 'efa', or 'tcp' for development");
}

TEST(DomainChoice, ADeviceIsTheEnvironmentsMatter) {
  Config config;
  config.connectx_device = "mlx5_3";
  const DomainChoice choice = DomainChoice::Make("connectx", {}, config).value();
  EXPECT_EQ(choice.kind, DomainKind::kConnectX);
  EXPECT_EQ(choice.device, "mlx5_3");
}

// No NIC of the kind is on a machine that runs this; where one were, the domain would be there.
TEST(DomainChoice, NothingFallsBack) {
  const auto domain = CreateDomain({.kind = DomainKind::kEfa, .provider = "no_such_provider"}, "group", nullptr);
  ASSERT_FALSE(domain.has_value());
  EXPECT_NE(domain.error().message.find("no_such_provider"), std::string::npos) << domain.error().message;
  const auto device = CreateDomain({.kind = DomainKind::kConnectX, .device = "no_such_device"}, "group", nullptr);
  ASSERT_FALSE(device.has_value());
  EXPECT_NE(device.error().message.find("no_such_device"), std::string::npos) << device.error().message;
}

}  // namespace
}  // namespace jax_fabric::ffi_layer
