#include "csrc/ffi/domain_choice.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "csrc/ffi/interface_address.h"

namespace jax_fabric::ffi_layer {
namespace {

Config Environment(const std::string& domain, const std::string& provider) {
  Config config;
  config.domain = domain;
  config.efa_provider = provider;
  return config;
}

TEST(DomainChoice, TheMachinesMemoryUnlessSomebodySaysOtherwise) {
  EXPECT_EQ(DomainChoice::Make({}, {}, {}, Config())->kind, DomainKind::kLocal);
  const DomainChoice choice = DomainChoice::Make({}, {}, {}, Environment("efa", "tcp")).value();
  EXPECT_EQ(choice.kind, DomainKind::kEfa);
  EXPECT_EQ(choice.provider, "tcp;ofi_rxm");
}

TEST(DomainChoice, TheProgramComesBeforeTheEnvironment) {
  EXPECT_EQ(DomainChoice::Make("local", {}, {}, Environment("efa", "tcp"))->kind, DomainKind::kLocal);
  EXPECT_EQ(DomainChoice::Make("efa", "shm", {}, Environment("local", "tcp"))->provider, "shm");
  EXPECT_EQ(DomainChoice::Make("efa", {}, {}, Config())->provider, "efa");
}

TEST(DomainChoice, TcpListensOnThisMachineAloneUnlessToldWhere) {
  EXPECT_EQ(DomainChoice::Make("efa", "tcp", {}, Config())->source_address, "127.0.0.1");
  EXPECT_EQ(DomainChoice::Make("efa", "tcp;ofi_rxm", {}, Config())->source_address, "127.0.0.1");
  EXPECT_EQ(DomainChoice::Make("efa", "efa", {}, Config())->source_address, "");
  Config config;
  config.efa_address = "10.0.0.5";
  EXPECT_EQ(DomainChoice::Make("efa", "tcp", {}, config)->source_address, "10.0.0.5");
}

TEST(DomainChoice, ErrorsNameArgumentAndValue) {
  const auto message = [](const Result<DomainChoice>& choice) {
    return choice.has_value() ? "no error" : choice.error().message;
  };
  EXPECT_EQ(message(DomainChoice::Make("tcp", {}, {}, Config())), "domain='tcp': must be 'local', 'efa' or 'connectx'");
  EXPECT_EQ(message(DomainChoice::Make("local", "tcp", {}, Config())),
            "provider='tcp': only domain='efa' has providers");
  EXPECT_EQ(message(DomainChoice::Make("connectx", "tcp", {}, Config())),
            "provider='tcp': only domain='efa' has providers");
  EXPECT_EQ(message(DomainChoice::Make("efa", "", {}, Config())), "provider='': give 'efa', or 'tcp' for development");
  EXPECT_EQ(message(DomainChoice::Make("local", {}, {"a", "b"}, Config())),
            "nics=['a', 'b']: domain='local' has none; give domain='efa' or 'connectx'");
  EXPECT_EQ(message(DomainChoice::Make("efa", {}, {"a", "b", "c", "d", "e"}, Config())),
            "nics=['a', 'b', 'c', 'd', 'e']: a group has 1 to 4");
}

TEST(DomainChoice, NicsAreTheProgramsThenTheEnvironments) {
  using Names = std::vector<std::string>;
  Config config;
  config.nics.groups = {{"mlx5_3"}};
  EXPECT_EQ(DomainChoice::Make("connectx", {}, {}, config)->nics, Names{"mlx5_3"});
  EXPECT_EQ(DomainChoice::Make("efa", {}, {}, config)->nics, Names{"mlx5_3"});
  EXPECT_EQ(DomainChoice::Make("connectx", {}, {"mlx5_0", "mlx5_1"}, config)->nics, (Names{"mlx5_0", "mlx5_1"}));
  EXPECT_EQ(DomainChoice::Make("local", {}, {}, config)->nics, Names{});
  config.nics.groups = {{"mlx5_3"}, {"mlx5_4"}};  // of devices, and nobody has said which one this is
  EXPECT_EQ(DomainChoice::Make("connectx", {}, {}, config)->nics, Names{});
}

TEST(DomainChoice, ANicThatIsNamedSaysWhereToListen) {
  EXPECT_EQ(DomainChoice::Make("efa", "tcp", {"eth0"}, Config())->source_address, "");
}

TEST(InterfaceAddress, OfThisMachine) {
  EXPECT_EQ(InterfaceAddress("lo").value(), "127.0.0.1");
  const auto missing = InterfaceAddress("no_such_interface");
  ASSERT_FALSE(missing.has_value());
  EXPECT_NE(missing.error().message.find("Found: "), std::string::npos);
  EXPECT_NE(missing.error().message.find("lo"), std::string::npos) << missing.error().message;
}

// No NIC of the kind is on a machine that runs this; where one were, the domain would be there.
TEST(DomainChoice, NothingFallsBack) {
  const auto domains = CreateDomains({.kind = DomainKind::kEfa, .provider = "no_such_provider"}, "group", nullptr);
  ASSERT_FALSE(domains.has_value());
  EXPECT_NE(domains.error().message.find("no_such_provider"), std::string::npos) << domains.error().message;
  const auto devices = CreateDomains({.kind = DomainKind::kConnectX, .nics = {"no_such_device"}}, "group", nullptr);
  ASSERT_FALSE(devices.has_value());
  EXPECT_NE(devices.error().message.find("no_such_device"), std::string::npos) << devices.error().message;
  const auto efa = CreateDomains({.kind = DomainKind::kEfa, .provider = "efa", .nics = {"no_such_nic"}}, "g", nullptr);
  EXPECT_FALSE(efa.has_value());
}

}  // namespace
}  // namespace jax_fabric::ffi_layer
