// What is refused before there is a domain, what errors say, what a domain leaves behind, and two domains over devices
// that differ. Over the double of libibverbs.
#include "csrc/engine/domains/connectx/connectx_domain.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "csrc/engine/domains/connectx/connectx_address.h"
#include "csrc/engine/domains/connectx/connectx_fabric.h"

namespace jax_fabric {
namespace {

using conformance::SetVerbsFaults;
using conformance::VerbsDoubleFunction;
using Clock = std::chrono::steady_clock;

ConnectXDomainOptions Double() {
  ConnectXDomainOptions options = conformance::ConnectXFabric::DoubleOptions();
  options.ack_timeout_exponent = 14;  // 67 ms
  options.retry_count = 3;
  return options;
}

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(ConnectXDomain, AMissingLibrarySaysWhatToInstall) {
  ConnectXDomainOptions options = Double();
  options.library = "libibverbs_that_is_not_there.so.1";
  const auto domain = CreateConnectXDomain(options);
  ASSERT_FALSE(domain.has_value());
  EXPECT_EQ(domain.error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(Contains(domain.error().message, options.library)) << domain.error().message;
  EXPECT_TRUE(Contains(domain.error().message, "apt-get install libibverbs1")) << domain.error().message;
}

TEST(ConnectXDomain, ALibraryOfSomethingElseSaysWhatItLacks) {
  ConnectXDomainOptions options = Double();
  options.library = "libc.so.6";
  EXPECT_TRUE(Contains(CreateConnectXDomain(options).error().message, "libc.so.6 has no "));
}

TEST(ConnectXDomain, AMissingDeviceSaysWhatWasFound) {
  ConnectXDomainOptions options = Double();
  options.device = "mlx5_7";
  const std::string missing = CreateConnectXDomain(options).error().message;
  for (const char* part : {"'mlx5_7'", "double0: not asked for", "double1"}) {
    EXPECT_TRUE(Contains(missing, part)) << missing;
  }
  options.device = "double_down";
  const std::string down = CreateConnectXDomain(options).error().message;
  EXPECT_TRUE(Contains(down, "double_down: port 1 is PORT_DOWN")) << down;
  options.device = "double0";
  options.port = 2;
  const std::string port = CreateConnectXDomain(options).error().message;
  EXPECT_TRUE(Contains(port, "has 1 ports, not 2")) << port;
}

TEST(ConnectXDomain, OptionsThatCannotWorkAreNamed) {
  ConnectXDomainOptions options = Double();
  options.peer_timeout_us = options.heartbeat_interval_us;
  EXPECT_TRUE(Contains(CreateConnectXDomain(options).error().message, "peer_timeout_us"));
  options = Double();
  options.ack_timeout_exponent = 0;
  EXPECT_TRUE(Contains(CreateConnectXDomain(options).error().message, "ack_timeout_exponent (0)"));
  options = Double();
  options.message_credits = 0;
  EXPECT_TRUE(Contains(CreateConnectXDomain(options).error().message, "message_credits"));
  options = Double();
  options.immediate_depth = 16384;
  options.max_outstanding = 16384;
  options.message_credits = 1;
  EXPECT_TRUE(CreateConnectXDomain(options).has_value());
}

// Of a table with entries of RoCE version 1, a link-local and an empty one.
TEST(ConnectXDomain, ChoosesAGlobalGidOfRoCEVersion2) {
  const auto domain = CreateConnectXDomain(Double());
  ASSERT_TRUE(domain.has_value()) << domain.error().message;
  EXPECT_EQ((*domain)->name(), "double0") << "the first device's port is down";
  EXPECT_EQ((*domain)->kind(), DomainKind::kConnectX);
  const auto address = connectx::ConnectXAddress::Open((*domain)->address());
  ASSERT_TRUE(address.has_value());
  EXPECT_EQ(address->port.gid[0], 0xfd);
  ConnectXDomainOptions options = Double();
  for (const int unusable : {0, 2, 3, 77}) {
    options.gid_index = unusable;
    const auto refused = CreateConnectXDomain(options);
    ASSERT_FALSE(refused.has_value()) << unusable;
    EXPECT_TRUE(Contains(refused.error().message, fmt::format("at index {}", unusable))) << refused.error().message;
  }
  options.gid_index = 5;
  EXPECT_TRUE(CreateConnectXDomain(options).has_value());
}

TEST(ConnectXDomain, TooMuchMemoryIsRefused) {
  ConnectXDomainOptions options = Double();
  options.max_region_bytes = 4096;
  const auto domain = CreateConnectXDomain(options);
  ASSERT_TRUE(domain.has_value());
  EXPECT_EQ((*domain)->limits().max_region_bytes, 4096u);
  std::vector<std::byte> memory(8192);
  const auto large = (*domain)->RegisterMemory(memory.data(), 8192, MemoryKind::kHost, Access::kLocalOnly);
  ASSERT_FALSE(large.has_value());
  EXPECT_TRUE(Contains(large.error().message, "at most 4096")) << large.error().message;
}

// Two domains in this thread, and memory of the second one that the first may write to.
class ConnectXPair : public testing::Test {
 protected:
  struct Side {
    std::vector<std::byte> memory = std::vector<std::byte>(kBytes);
    std::unique_ptr<Domain> domain;
    MemoryRegion region;
    std::vector<Completion> completions;
    std::string error;  // of the last one that failed

    void Poll() {
      std::array<Completion, 32> found;
      const size_t count = domain->Poll(found);
      for (size_t i = 0; i < count; ++i) {
        if (found[i].code != ErrorCode::kOk && error.empty()) error = domain->last_error();
        completions.push_back(found[i]);
      }
    }
    size_t Count(CompletionKind kind) const {
      return static_cast<size_t>(std::count_if(completions.begin(), completions.end(),
                                               [&](const Completion& each) { return each.kind == kind; }));
    }
  };
  static constexpr uint64_t kBytes = 1 << 20;

  void SetUp() override { ASSERT_TRUE(SetVerbsFaults({})); }

  void Make(Side& side, const ConnectXDomainOptions& options) {
    auto domain = CreateConnectXDomain(options);
    ASSERT_TRUE(domain.has_value()) << domain.error().message;
    side.domain = std::move(*domain);
    const auto region =
        side.domain->RegisterMemory(side.memory.data(), kBytes, MemoryKind::kHost, Access::kRemoteWrite);
    ASSERT_TRUE(region.has_value()) << region.error().message;
    side.region = *region;
  }

  void Connect() {
    const auto peer = writer_.domain->AddPeer(target_.domain->address());
    ASSERT_TRUE(peer.has_value()) << peer.error().message;
    ASSERT_TRUE(Until([&] { return writer_.domain->peer_state(*peer) != PeerState::kConnecting; }));
    ASSERT_EQ(writer_.domain->peer_state(*peer), PeerState::kReady) << writer_.error;
    write_.peer = *peer;
    write_.source = writer_.memory.data();
    write_.local_key = writer_.region.local_key;
    write_.length = 64;
    write_.remote_address = target_.region.remote_address;
    write_.remote_key = target_.region.remote_key;
  }

  void Connect(const ConnectXDomainOptions& writer, const ConnectXDomainOptions& target) {
    ASSERT_NO_FATAL_FAILURE(Make(writer_, writer));
    ASSERT_NO_FATAL_FAILURE(Make(target_, target));
    ASSERT_NO_FATAL_FAILURE(Connect());
  }

  // Polls both until it holds; false: not within 20 s.
  bool Until(const std::function<bool()>& holds) {
    const auto end = Clock::now() + std::chrono::seconds(20);
    while (!holds()) {
      if (Clock::now() > end) return false;
      writer_.Poll();
      if (target_.domain != nullptr) target_.Poll();
    }
    return true;
  }

  // One write, until it is over.
  void Write(std::optional<uint32_t> immediate = {}) {
    const size_t before = writer_.Count(CompletionKind::kWrite);
    write_.immediate = immediate;
    PostResult result = PostResult::kAgain;
    ASSERT_TRUE(Until([&] { return (result = writer_.domain->PostWrite(write_)) != PostResult::kAgain; }));
    ASSERT_EQ(result, PostResult::kPosted) << writer_.domain->last_error();
    ASSERT_TRUE(Until([&] { return writer_.Count(CompletionKind::kWrite) > before; }));
  }

  Side writer_, target_;
  WriteRequest write_;
};

TEST_F(ConnectXPair, PortsOfDifferentMtuAgree) {
  ConnectXDomainOptions small = Double();
  small.device = "double1";
  ASSERT_NO_FATAL_FAILURE(Connect(Double(), small));
  Write(7);
  ASSERT_TRUE(Until([&] { return target_.Count(CompletionKind::kImmediate) == 1; }));
}

TEST_F(ConnectXPair, DevicesWithoutWhatIsOptionalWork) {
  ASSERT_TRUE(SetVerbsFaults({.refuse_relaxed_ordering = true, .refuse_inline = true}));
  ASSERT_NO_FATAL_FAILURE(Connect(Double(), Double()));
  Write(7);
  ASSERT_TRUE(Until([&] { return target_.Count(CompletionKind::kImmediate) == 1; }));
}

// A key that was given once: this side lets it pass. What is behind the refused write comes back, and the connection is
// made anew.
TEST_F(ConnectXPair, ARefusedWriteSaysWhyAndEndsNothingElse) {
  ASSERT_NO_FATAL_FAILURE(Connect(Double(), Double()));
  const MemoryRegion kept = target_.region;
  std::vector<std::byte> gone(64);
  const auto region = target_.domain->RegisterMemory(gone.data(), 64, MemoryKind::kHost, Access::kRemoteWrite);
  ASSERT_TRUE(region.has_value());
  ASSERT_TRUE(target_.domain->DeregisterMemory(*region).has_value());
  write_.remote_address = region->remote_address;
  write_.remote_key = region->remote_key;
  ASSERT_NO_FATAL_FAILURE(Write(1));
  EXPECT_EQ(writer_.completions.back().code, ErrorCode::kPermissionDenied);
  for (const char* part :
       {"write to peer 0", "remote access error", "the peer has no memory registered with this key"}) {
    EXPECT_TRUE(Contains(writer_.error, part)) << writer_.error;
  }
  write_.remote_address = kept.remote_address;
  write_.remote_key = kept.remote_key;
  ASSERT_NO_FATAL_FAILURE(Write(2));
  EXPECT_EQ(writer_.completions.back().code, ErrorCode::kOk);
  EXPECT_EQ(writer_.domain->peer_state(write_.peer), PeerState::kReady);
  ASSERT_TRUE(Until([&] { return target_.Count(CompletionKind::kImmediate) == 1; }));
  EXPECT_EQ(target_.completions.back().immediate, 2u);
}

// Of a paged transfer in chains: each page ends once; those in front of the refused one well, those behind it not.
TEST_F(ConnectXPair, ARefusedPageInAChainEndsThoseBehindIt) {
  ASSERT_NO_FATAL_FAILURE(Connect(Double(), Double()));
  constexpr uint32_t kPages = 10, kBad = 6;
  std::array<uint64_t, kPages> from{}, to{};
  for (uint32_t i = 0; i < kPages; ++i) from[i] = to[i] = i * 4096;
  to[kBad] = kBytes;
  PagesRequest pages;
  pages.peer = write_.peer;
  pages.source = writer_.memory.data();
  pages.local_key = write_.local_key;
  pages.length = 4096;
  pages.remote_address = write_.remote_address;
  pages.remote_key = write_.remote_key;
  pages.source_offsets = from.data();
  pages.target_offsets = to.data();
  pages.count = kPages;
  pages.immediate = 3;
  uint32_t posted = 0;
  ASSERT_EQ(writer_.domain->PostPages(pages, posted), PostResult::kPosted);
  ASSERT_EQ(posted, kPages);
  const auto ended = [&](bool good) {
    uint32_t count = 0;
    for (const Completion& each : writer_.completions) {
      count += each.kind == CompletionKind::kWrite && (each.code == ErrorCode::kOk) == good ? each.count : 0;
    }
    return count;
  };
  ASSERT_TRUE(Until([&] { return ended(true) + ended(false) == kPages; }));
  EXPECT_EQ(ended(true), kBad);
  EXPECT_TRUE(Contains(writer_.error, "remote access error")) << writer_.error;
  EXPECT_TRUE(Contains(writer_.domain->last_error(), "behind a failed one")) << writer_.domain->last_error();
  ASSERT_TRUE(Until([&] { return target_.Count(CompletionKind::kImmediate) == kBad; }));
}

// One side's refused write leaves the other side's writes alone.
TEST_F(ConnectXPair, ARefusedWriteIsNotTheOtherSidesMatter) {
  ASSERT_NO_FATAL_FAILURE(Connect(Double(), Double()));
  const auto back = target_.domain->AddPeer(writer_.domain->address());
  ASSERT_TRUE(back.has_value());
  ASSERT_TRUE(Until([&] { return target_.domain->peer_state(*back) == PeerState::kReady; }));
  write_.remote_address += kBytes;
  for (int i = 0; i < 20; ++i) {
    WriteRequest answer = write_;
    answer.peer = *back;
    answer.source = target_.memory.data();
    answer.local_key = target_.region.local_key;
    answer.remote_address = writer_.region.remote_address;
    answer.remote_key = writer_.region.remote_key;
    ASSERT_EQ(target_.domain->PostWrite(answer), PostResult::kPosted);
    ASSERT_NO_FATAL_FAILURE(Write());
    EXPECT_NE(writer_.completions.back().code, ErrorCode::kOk);
  }
  ASSERT_TRUE(Until([&] { return target_.Count(CompletionKind::kWrite) == 20; }));
  for (const Completion& each : target_.completions) EXPECT_EQ(each.code, ErrorCode::kOk) << target_.error;
}

TEST_F(ConnectXPair, ADeadProcessIsNoticedByItsSilenceAndByWrites) {
  struct Address {
    MemoryRegion region;
    uint64_t size = 0;
    std::array<std::byte, 256> bytes{};
  };
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto domain = CreateConnectXDomain(Double());
    std::vector<std::byte> memory(kBytes);
    Address address;
    if (!domain.has_value()) _exit(1);
    const auto region = (*domain)->RegisterMemory(memory.data(), kBytes, MemoryKind::kHost, Access::kRemoteWrite);
    if (!region.has_value()) _exit(2);
    address.region = *region;
    address.size = (*domain)->address().size();
    std::copy((*domain)->address().begin(), (*domain)->address().end(), address.bytes.begin());
    if (write(ends[1], &address, sizeof(address)) != sizeof(address)) _exit(3);
    std::array<Completion, 16> completions;
    for (;;) (*domain)->Poll(completions);
  }
  ASSERT_NO_FATAL_FAILURE(Make(writer_, Double()));
  Address address;
  ASSERT_EQ(read(ends[0], &address, sizeof(address)), static_cast<ssize_t>(sizeof(address)));
  close(ends[0]);
  close(ends[1]);
  const auto peer = writer_.domain->AddPeer(ByteView(address.bytes).first(address.size));
  ASSERT_TRUE(peer.has_value());
  ASSERT_TRUE(Until([&] { return writer_.domain->peer_state(*peer) == PeerState::kReady; }));
  write_.peer = *peer;
  write_.source = writer_.memory.data();
  write_.local_key = writer_.region.local_key;
  write_.length = 64;
  write_.remote_address = address.region.remote_address;
  write_.remote_key = address.region.remote_key;
  ASSERT_NO_FATAL_FAILURE(Write());
  EXPECT_EQ(writer_.completions.back().code, ErrorCode::kOk);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  ASSERT_NO_FATAL_FAILURE(Write());
  EXPECT_EQ(writer_.completions.back().code, ErrorCode::kUnavailable);
  for (const char* part : {"no acknowledgement came", "port 1 is PORT_ACTIVE", "transport retry counter exceeded"}) {
    EXPECT_TRUE(Contains(writer_.error, part)) << writer_.error;
  }
  ASSERT_TRUE(Until([&] { return writer_.Count(CompletionKind::kPeerFault) == 1; }));
  EXPECT_EQ(writer_.completions.back().code, ErrorCode::kUnavailable);
  EXPECT_EQ(writer_.domain->peer_state(*peer), PeerState::kFailed);
}

TEST_F(ConnectXPair, ADomainLeavesNothingBehind) {
  const auto leaks = VerbsDoubleFunction<verbs_double::LeaksFunction>(verbs_double::kLeaks);
  ASSERT_NE(leaks, nullptr);
  const uint64_t before = leaks();
  ASSERT_NO_FATAL_FAILURE(Connect(Double(), Double()));
  write_.length = kBytes;
  ASSERT_EQ(writer_.domain->PostWrite(write_), PostResult::kPosted);
  writer_.domain.reset();
  target_.domain.reset();
  EXPECT_EQ(leaks(), before);
}

// Nor does one whose peers go while datagrams to them are on the way.
TEST_F(ConnectXPair, RoutesOutliveTheirDatagrams) {
  const auto leaks = VerbsDoubleFunction<verbs_double::LeaksFunction>(verbs_double::kLeaks);
  ASSERT_NE(leaks, nullptr);
  const uint64_t before = leaks();
  ASSERT_TRUE(SetVerbsFaults({.seed = 1, .completion_delay_us = 50'000}));
  ASSERT_NO_FATAL_FAILURE(Connect(Double(), Double()));
  for (int round = 0; round < 10; ++round) {
    writer_.domain->RemovePeer(write_.peer);
    ASSERT_TRUE(Until([&] { return writer_.domain->peer_state(write_.peer) == PeerState::kRemoved; }));
    ASSERT_NO_FATAL_FAILURE(Connect());
  }
  writer_.domain.reset();
  target_.domain.reset();
  EXPECT_EQ(leaks(), before);
}

// Far more immediates than there are receives, and nobody who polls.
TEST_F(ConnectXPair, MoreImmediatesThanReceivesAreNotLost) {
  ConnectXDomainOptions options = Double();
  options.immediate_depth = 8;
  ASSERT_NO_FATAL_FAILURE(Connect(options, options));
  constexpr uint32_t kWrites = 400;
  for (uint32_t i = 0; i < kWrites; ++i) {
    write_.immediate = i;
    write_.length = i % 2 * 64;
    ASSERT_EQ(writer_.domain->PostWrite(write_), PostResult::kPosted);
  }
  // Longer than a packet is waited for.
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  ASSERT_TRUE(Until([&] {
    return target_.Count(CompletionKind::kImmediate) == kWrites && writer_.Count(CompletionKind::kWrite) == kWrites;
  })) << target_.Count(CompletionKind::kImmediate);
  for (const Completion& each : writer_.completions) EXPECT_EQ(each.code, ErrorCode::kOk) << writer_.error;
}

}  // namespace
}  // namespace jax_fabric
