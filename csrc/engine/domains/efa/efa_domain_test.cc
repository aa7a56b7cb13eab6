// What is refused before there is a domain: options, providers and libraries that are not there.
#include "csrc/engine/domains/efa/efa_domain.h"

#include <gtest/gtest.h>

namespace jax_fabric {
namespace {

EfaDomainOptions Tcp() {
  EfaDomainOptions options;
  options.provider = "tcp;ofi_rxm";
  options.source_address = "127.0.0.1";
  return options;
}

TEST(EfaDomain, AMissingLibrarySaysWhatToInstall) {
  EfaDomainOptions options = Tcp();
  options.library = "libfabric_that_is_not_there.so.1";
  const auto domain = CreateEfaDomain(options);
  ASSERT_FALSE(domain.has_value());
  EXPECT_EQ(domain.error().code, ErrorCode::kNotFound);
  EXPECT_NE(domain.error().message.find(options.library), std::string::npos) << domain.error().message;
  EXPECT_NE(domain.error().message.find("apt-get install libfabric1"), std::string::npos) << domain.error().message;
}

TEST(EfaDomain, AMissingProviderSaysWhatWasFound) {
  EfaDomainOptions options;
  options.provider = "no_such_provider";
  const auto domain = CreateEfaDomain(options);
  ASSERT_FALSE(domain.has_value());
  EXPECT_NE(domain.error().message.find("no_such_provider"), std::string::npos) << domain.error().message;
  EXPECT_NE(domain.error().message.find("tcp"), std::string::npos) << domain.error().message;
}

TEST(EfaDomain, OptionsThatCannotWorkAreNamed) {
  EfaDomainOptions options = Tcp();
  options.peer_timeout_us = options.heartbeat_interval_us;
  EXPECT_NE(CreateEfaDomain(options).error().message.find("peer_timeout_us"), std::string::npos);
  options = Tcp();
  options.message_credits = 0;
  EXPECT_NE(CreateEfaDomain(options).error().message.find("message_credits"), std::string::npos);
}

TEST(EfaDomain, PeersOfAnotherProviderAreRefused) {
  auto domain = CreateEfaDomain(Tcp());
  ASSERT_TRUE(domain.has_value()) << domain.error().message;
  EfaDomainOptions options;
  options.provider = "shm";
  auto other = CreateEfaDomain(options);
  ASSERT_TRUE(other.has_value()) << other.error().message;
  const auto peer = (*domain)->AddPeer((*other)->address());
  ASSERT_FALSE(peer.has_value());
  EXPECT_NE(peer.error().message.find("shm"), std::string::npos) << peer.error().message;
  EXPECT_EQ((*domain)->kind(), DomainKind::kEfa);
  EXPECT_GT((*domain)->limits().max_outstanding, 0u);
}

}  // namespace
}  // namespace jax_fabric
