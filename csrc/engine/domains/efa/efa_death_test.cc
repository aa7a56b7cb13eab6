// Connections that end in the middle of a write: libfabric's datagrams over TCP took the target with them
// (EfaDomain::splits_).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "csrc/engine/domains/efa/efa_domain.h"

namespace jax_fabric {
namespace {

constexpr uint64_t kBytes = 16 << 20;
constexpr int kRounds = 4;
using Clock = std::chrono::steady_clock;

std::unique_ptr<Domain> MakeDomain() {
  EfaDomainOptions options;
  options.provider = "tcp;ofi_rxm";
  options.source_address = "127.0.0.1";
  options.heartbeat_interval_us = 200'000;
  auto domain = CreateEfaDomain(options);
  return domain.has_value() ? std::move(*domain) : nullptr;
}

struct Target {
  uint64_t remote_address = 0;
  uint64_t remote_key = 0;
  uint64_t name_bytes = 0;
  std::array<std::byte, 512> name = {};
};

// In a process of its own, which somebody ends.
[[noreturn]] void WriteForever(const Target& target) {
  const std::unique_ptr<Domain> domain = MakeDomain();
  if (domain == nullptr) _exit(1);
  std::vector<std::byte> source(kBytes);
  const auto region = domain->RegisterMemory(source.data(), kBytes, MemoryKind::kHost, Access::kLocalOnly);
  const auto peer = domain->AddPeer(ByteView(target.name).first(target.name_bytes));
  if (!region.has_value() || !peer.has_value()) _exit(2);
  WriteRequest write;
  write.peer = *peer;
  write.source = source.data();
  write.local_key = region->local_key;
  write.length = kBytes;
  write.remote_address = target.remote_address;
  write.remote_key = target.remote_key;
  write.immediate = 1;
  std::array<Completion, 16> completions;
  for (int under_way = 0;;) {
    if (under_way < 4 && domain->PostWrite(write) == PostResult::kPosted) ++under_way;
    const size_t count = domain->Poll(completions);
    for (size_t i = 0; i < count; ++i) under_way -= completions[i].kind == CompletionKind::kWrite ? 1 : 0;
  }
}

// Polls for that long; whether an immediate came.
bool PollFor(Domain& domain, std::chrono::milliseconds time) {
  std::array<Completion, 16> completions;
  bool came = false;
  for (const auto end = Clock::now() + time; Clock::now() < end;) {
    const size_t count = domain.Poll(completions);
    for (size_t i = 0; i < count; ++i) came |= completions[i].kind == CompletionKind::kImmediate;
  }
  return came;
}

// A domain that somebody writes to, until the writer is in the middle of its writes.
struct Written {
  std::vector<std::byte> memory = std::vector<std::byte>(kBytes);
  std::unique_ptr<Domain> domain = MakeDomain();
  pid_t writer = -1;

  void Start(int round) {
    ASSERT_NE(domain, nullptr);
    const auto region = domain->RegisterMemory(memory.data(), kBytes, MemoryKind::kHost, Access::kRemoteWrite);
    ASSERT_TRUE(region.has_value()) << region.error().message;
    Target target{.remote_address = region->remote_address, .remote_key = region->remote_key};
    target.name_bytes = domain->address().size();
    ASSERT_LE(target.name_bytes, target.name.size());
    std::copy(domain->address().begin(), domain->address().end(), target.name.begin());
    writer = fork();
    if (writer == 0) WriteForever(target);
    ASSERT_GT(writer, 0);
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    bool came = false;
    while (!came && Clock::now() < deadline) came = PollFor(*domain, std::chrono::milliseconds(1));
    PollFor(*domain, std::chrono::milliseconds(round));
    ASSERT_TRUE(came) << "round " << round << ": the writer wrote nothing";
  }
  ~Written() {
    if (writer <= 0) return;
    kill(writer, SIGKILL);
    waitpid(writer, nullptr, 0);
  }
};

TEST(EfaDeath, AWriterThatIsKilledDoesNotTakeItsTargetWithIt) {
  for (int round = 0; round < kRounds; ++round) {
    Written target;
    ASSERT_NO_FATAL_FAILURE(target.Start(round));
    kill(target.writer, SIGKILL);
    PollFor(*target.domain, std::chrono::milliseconds(100));
  }
}

// It says goodbye, gets no answer, and goes.
TEST(EfaDeath, ATargetClosesInTheMiddleOfAWrite) {
  for (int round = 0; round < kRounds; ++round) {
    Written target;
    ASSERT_NO_FATAL_FAILURE(target.Start(round));
    kill(target.writer, SIGSTOP);
    target.domain.reset();
  }
}

}  // namespace
}  // namespace jax_fabric
