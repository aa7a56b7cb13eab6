// What is special to the local domain; the contract itself is checked by local_conformance_test.
#include "csrc/engine/domains/local/local_domain.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/unique_fd.h"
#include "csrc/engine/domains/local/copy.h"

namespace jax_fabric {
namespace {

using local::CopyBytes;

constexpr int64_t kPatienceUs = 30'000'000;

std::unique_ptr<Domain> Make(const LocalDomainOptions& options = {}) {
  auto domain = CreateLocalDomain(options);
  EXPECT_TRUE(domain.has_value()) << domain.error().message;
  return std::move(*domain);
}

// Polls the domain until the condition holds; all completions go to `got`.
bool Until(Domain& domain, std::vector<Completion>& got, const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::After(SteadyClock::Get(), kPatienceUs);
  std::array<Completion, 64> completions;
  while (!condition()) {
    if (deadline.Passed(SteadyClock::Get())) return false;
    const size_t count = domain.Poll(completions);
    got.insert(got.end(), completions.begin(), completions.begin() + static_cast<ptrdiff_t>(count));
    if (count == 0) std::this_thread::yield();
  }
  return true;
}

WriteRequest MakeWrite(PeerId peer, const MemoryRegion& from, const MemoryRegion& to, uint64_t length,
                       std::optional<uint32_t> immediate) {
  WriteRequest write;
  write.peer = peer;
  write.source = reinterpret_cast<const void*>(from.address);
  write.local_key = from.local_key;
  write.length = length;
  write.remote_address = to.remote_address;
  write.remote_key = to.remote_key;
  write.immediate = immediate;
  return write;
}

int CountDescriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<int>(std::distance(begin(files), end(files)));
}

int CountThreads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

int CountMappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("jax_fabric") != std::string::npos;
  return count;
}

// A child process, forked while this one has no other threads, that makes one domain with a target region, shows
// both, and then runs `body` until it is killed or the parent's end of the socket is closed.
class Child {
 public:
  using Body = std::function<void(Domain&, const MemoryRegion& region, int socket)>;
  struct Hello {
    std::array<std::byte, 512> address;
    uint64_t address_size;
    MemoryRegion region;
  };

  Child(bool shared, const Body& body) {
    std::array<int, 2> sockets;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(sockets[0]);
      Run(shared, body, sockets[1]);
      _exit(0);
    }
    close(sockets[1]);
    socket_ = UniqueFd(sockets[0]);
    EXPECT_EQ(recv(socket_.get(), &hello_, sizeof(hello_), 0), static_cast<ssize_t>(sizeof(hello_)));
  }
  ~Child() { Kill(); }

  void Tell(ByteView bytes) { EXPECT_GT(send(socket_.get(), bytes.data(), bytes.size(), 0), 0); }
  ssize_t Receive(void* target, size_t size) { return recv(socket_.get(), target, size, 0); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  ByteView address() const { return ByteView(hello_.address).first(hello_.address_size); }
  const MemoryRegion& region() const { return hello_.region; }
  pid_t pid() const { return pid_; }

 private:
  static void Run(bool shared, const Body& body, int socket) {
    auto domain = CreateLocalDomain({}).value();
    constexpr uint64_t kBytes = 1 << 20;
    SharedMemory memory;
    std::vector<std::byte> own;
    if (shared) {
      memory = AllocateShared(kBytes).value();
    } else {
      own.resize(kBytes);
    }
    Hello hello = {};
    hello.region = domain->RegisterMemory(shared ? memory.data() : own.data(), kBytes, MemoryKind::kHost,
                                          Access::kRemoteWrite).value();
    hello.address_size = domain->address().size();
    std::memcpy(hello.address.data(), domain->address().data(), hello.address_size);
    send(socket, &hello, sizeof(hello), 0);
    body(*domain, hello.region, socket);
  }

  Hello hello_ = {};
  UniqueFd socket_;
  pid_t pid_ = -1;
};

// A body that polls, and answers each immediate by the region's first byte over the socket.
void EchoFirstByte(Domain& domain, const MemoryRegion& region, int socket) {
  std::array<Completion, 16> completions;
  pollfd polled = {socket, 0, 0};
  while (poll(&polled, 1, 0) == 0) {
    const size_t count = domain.Poll(completions);
    for (size_t i = 0; i < count; ++i) {
      if (completions[i].kind == CompletionKind::kImmediate) send(socket, reinterpret_cast<void*>(region.address), 1, 0);
    }
  }
}

// Tests with children come first: ThreadSanitizer does not like forks of a process with threads, and the descriptor
// server is one as long as a domain exists.
class LocalProcess : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(CountNonSanitizerThreads(), 1); }
  static int CountNonSanitizerThreads() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    return 1;  // they have threads of their own
#else
    return CountThreads();
#endif
  }
};

TEST_F(LocalProcess, KilledWhileItSendsAndReceives) {
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    // The child floods us with writes while we flood it.
    Child child(true, [](Domain& domain, const MemoryRegion& region, int socket) {
      std::array<std::byte, 1024> message;
      const ssize_t size = recv(socket, message.data(), sizeof(message), 0);
      MemoryRegion target;
      std::memcpy(&target, message.data(), sizeof(target));
      const PeerId peer = domain.AddPeer(ByteView(message).subspan(sizeof(target), size - sizeof(target))).value();
      std::array<Completion, 64> completions;
      for (uint32_t n = 0;;) {
        n += domain.PostWrite(MakeWrite(peer, region, target, 1 + n % 5000, n)) == PostResult::kPosted;
        domain.Poll(completions);
      }
    });
    LocalDomainOptions options;
    options.use_pidfd = round % 2 == 0;
    auto domain = Make(options);
    SharedMemory memory = AllocateShared(1 << 20).value();
    const auto region = domain->RegisterMemory(memory.data(), memory.size(), MemoryKind::kHost, Access::kRemoteWrite).value();
    Bytes hello(sizeof(region) + domain->address().size());
    std::memcpy(hello.data(), &region, sizeof(region));
    std::memcpy(hello.data() + sizeof(region), domain->address().data(), domain->address().size());
    child.Tell(hello);

    const PeerId peer = domain->AddPeer(child.address()).value();
    std::vector<Completion> got;
    ASSERT_TRUE(Until(*domain, got, [&] { return domain->peer_state(peer) == PeerState::kReady; }));
    ASSERT_TRUE(Until(*domain, got, [&] { return got.size() > 100; })) << "the child sends nothing";
    uint64_t posted = 0, finished = 0, faults = 0;
    bool killed = false;
    size_t looked_at = 0;
    const Deadline deadline = Deadline::After(SteadyClock::Get(), kPatienceUs);
    while (domain->peer_state(peer) == PeerState::kReady && !deadline.Passed(SteadyClock::Get())) {
      const bool large = posted % 100 == 0;
      posted += domain->PostWrite(MakeWrite(peer, region, child.region(), large ? 1 << 20 : posted % 100, 1)) ==
                PostResult::kPosted;
      Until(*domain, got, [n = 0]() mutable { return n++ > 0; });
      if (posted == 3000 + static_cast<uint64_t>(round) * 7 && !killed) {
        child.Kill();
        killed = true;
      }
    }
    ASSERT_TRUE(killed);
    const auto count = [&] {
      for (; looked_at < got.size(); ++looked_at) {
        finished += got[looked_at].kind == CompletionKind::kWrite;
        faults += got[looked_at].kind == CompletionKind::kPeerFault;
      }
    };
    EXPECT_TRUE(Until(*domain, got, [&] { count(); return finished >= posted && faults > 0; }));
    EXPECT_EQ(finished, posted);
    EXPECT_EQ(faults, 1u);
    EXPECT_EQ(domain->peer_state(peer), PeerState::kFailed);
    EXPECT_EQ(domain->PostWrite(MakeWrite(peer, region, child.region(), 1, 1)), PostResult::kRejected);
    EXPECT_NE(domain->last_error().find("peer 0 (process "), std::string::npos) << domain->last_error();
    EXPECT_TRUE(domain->DeregisterMemory(region).has_value());
  }
}

TEST_F(LocalProcess, DeathWakesASleeper) {
  for (const bool use_pidfd : {true, false}) {
    Child child(true, EchoFirstByte);
    LocalDomainOptions options;
    options.use_pidfd = use_pidfd;
    auto domain = Make(options);
    const PeerId peer = domain->AddPeer(child.address()).value();
    std::vector<Completion> got;
    ASSERT_TRUE(Until(*domain, got, [&] { return domain->peer_state(peer) == PeerState::kReady; }));
    child.Kill();
    while (got.empty()) {
      if (!domain->ArmWait()) {
        Until(*domain, got, [n = 0]() mutable { return n++ > 0; });
        continue;
      }
      pollfd polled = {domain->wait_fd(), POLLIN, 0};
      ASSERT_EQ(poll(&polled, 1, 10'000), 1) << "nothing woke us, pidfd " << use_pidfd;
      Until(*domain, got, [n = 0]() mutable { return n++ > 0; });
    }
    EXPECT_EQ(got[0].kind, CompletionKind::kPeerFault);
    EXPECT_EQ(got[0].code, ErrorCode::kUnavailable);
  }
}

TEST_F(LocalProcess, MemoryThatCannotBeShared) {
  for (const bool use_process_vm : {true, false}) {
    Child child(false, EchoFirstByte);
    std::string log;
    LocalDomainOptions options;
    options.use_process_vm = use_process_vm;
    options.log = [&log](const std::string& line) { log += line + "\n"; };
    auto domain = Make(options);
    std::vector<std::byte> source(1 << 20, std::byte{0x77});
    const auto region = domain->RegisterMemory(source.data(), source.size(), MemoryKind::kHost, Access::kLocalOnly).value();
    const PeerId peer = domain->AddPeer(child.address()).value();
    std::vector<Completion> got;
    ASSERT_TRUE(Until(*domain, got, [&] { return domain->peer_state(peer) == PeerState::kReady; }));
    EXPECT_NE(log.find(LocalPeerPath(*domain, peer)), std::string::npos) << log;
    EXPECT_EQ(domain->MapRemote(peer, child.region().remote_address, child.region().remote_key, 1), nullptr);

    const PostResult result = domain->PostWrite(MakeWrite(peer, region, child.region(), 1 << 20, 9));
    if (LocalPeerPath(*domain, peer) == "shared memory only") {
      EXPECT_EQ(result, PostResult::kRejected);
      EXPECT_NE(domain->last_error().find("AllocateShared"), std::string::npos) << domain->last_error();
      // Empty writes touch no memory and still work.
      EXPECT_EQ(domain->PostWrite(MakeWrite(peer, region, child.region(), 0, 9)), PostResult::kPosted);
      continue;
    }
    ASSERT_EQ(result, PostResult::kPosted) << domain->last_error();
    ASSERT_TRUE(Until(*domain, got, [&] { return !got.empty(); }));
    EXPECT_EQ(got[0].code, ErrorCode::kOk) << domain->last_error();
    std::byte first{0};
    EXPECT_EQ(child.Receive(&first, 1), 1);
    EXPECT_EQ(first, std::byte{0x77});
  }
}

TEST_F(LocalProcess, PeerMemoryThatComesAndGoesIsUnmapped) {
  // The child registers new shared memory for every byte that we send, and drops the last one.
  Child child(true, [](Domain& domain, const MemoryRegion&, int socket) {
    for (char byte; recv(socket, &byte, 1, 0) == 1;) {
      SharedMemory memory = AllocateShared(1 << 16).value();
      const auto region = domain.RegisterMemory(memory.data(), memory.size(), MemoryKind::kHost, Access::kRemoteWrite).value();
      send(socket, &region, sizeof(region), 0);
      if (recv(socket, &byte, 1, 0) != 1) return;
      if (!domain.DeregisterMemory(region).has_value()) return;
    }
  });
  auto domain = Make();
  std::vector<std::byte> source(100, std::byte{5});
  const auto from = domain->RegisterMemory(source.data(), source.size(), MemoryKind::kHost, Access::kLocalOnly).value();
  const PeerId peer = domain->AddPeer(child.address()).value();
  std::vector<Completion> got;
  ASSERT_TRUE(Until(*domain, got, [&] { return domain->peer_state(peer) == PeerState::kReady; }));
  int mappings = 0;
  for (int round = 0; round < 30; ++round) {
    const std::byte go{1};
    child.Tell({&go, 1});
    MemoryRegion region;
    ASSERT_EQ(child.Receive(&region, sizeof(region)), static_cast<ssize_t>(sizeof(region)));
    ASSERT_EQ(domain->PostWrite(MakeWrite(peer, from, region, 100, std::nullopt)), PostResult::kPosted);
    ASSERT_TRUE(Until(*domain, got, [&] { return got.size() == static_cast<size_t>(round) + 1; }));
    EXPECT_EQ(got.back().code, ErrorCode::kOk) << domain->last_error();
    child.Tell({&go, 1});
    if (round == 5) mappings = CountMappings();
  }
  EXPECT_LE(CountMappings(), mappings + 1);
}

TEST(LocalDomain, DescriptorsThreadsAndMappingsStayFlat) {
  const auto use = [] {
    auto a = Make();
    auto b = Make();
    const PeerId peer = a->AddPeer(b->address()).value();
    uint64_t word = 1;
    const auto region = a->RegisterMemory(&word, 8, MemoryKind::kHost, Access::kRemoteWrite).value();
    const auto target = b->RegisterMemory(&word, 8, MemoryKind::kHost, Access::kRemoteWrite).value();
    EXPECT_EQ(a->PostWrite(MakeWrite(peer, region, target, 0, 1)), PostResult::kPosted);
  };
  use();
  const int descriptors = CountDescriptors(), threads = CountThreads(), mappings = CountMappings();
  for (int i = 0; i < 200; ++i) use();
  EXPECT_EQ(CountDescriptors(), descriptors);
  EXPECT_EQ(CountThreads(), threads);
  EXPECT_EQ(CountMappings(), mappings);
}

TEST(LocalDomain, OneHundredRestartsOfAPeer) {
  auto stays = Make();
  std::vector<Completion> got;
  int descriptors = 0, mappings = 0;
  Bytes stale;
  for (int i = 0; i < 100; ++i) {
    auto peer = Make();
    const PeerId there = stays->AddPeer(peer->address()).value();
    const PeerId here = peer->AddPeer(stays->address()).value();
    uint64_t word = 0;
    const auto region = stays->RegisterMemory(&word, 8, MemoryKind::kHost, Access::kRemoteWrite).value();
    const auto source = peer->RegisterMemory(&word, 8, MemoryKind::kHost, Access::kLocalOnly).value();
    ASSERT_EQ(peer->PostWrite(MakeWrite(here, source, region, 0, static_cast<uint32_t>(i))), PostResult::kPosted);
    if (!stale.empty()) {
      EXPECT_EQ(stays->AddPeer(stale).error().code, ErrorCode::kUnavailable);
    }
    stale.assign(peer->address().begin(), peer->address().end());
    peer.reset();
    got.clear();
    ASSERT_TRUE(Until(*stays, got, [&] { return got.size() == 2; }));
    EXPECT_EQ(got[0].kind == CompletionKind::kPeerFault ? got[1].immediate : got[0].immediate, static_cast<uint32_t>(i));
    EXPECT_EQ(stays->peer_state(there), PeerState::kFailed);
    stays->RemovePeer(there);
    EXPECT_TRUE(stays->DeregisterMemory(region).has_value());
    if (i == 10) descriptors = CountDescriptors(), mappings = CountMappings();
  }
  EXPECT_EQ(CountDescriptors(), descriptors);
  EXPECT_EQ(CountMappings(), mappings);
}

TEST(LocalDomain, SleeperIsWokenByAnImmediateAMessageAndTheEndOfAPeer) {
  auto sleeper = Make();
  auto sender = Make();
  uint64_t word = 0;
  const auto target = sleeper->RegisterMemory(&word, 8, MemoryKind::kHost, Access::kRemoteWrite).value();
  const auto source = sender->RegisterMemory(&word, 8, MemoryKind::kHost, Access::kLocalOnly).value();
  const PeerId peer = sender->AddPeer(sleeper->address()).value();
  ASSERT_TRUE(sleeper->AddPeer(sender->address()).has_value());
  ReceiveRequest receive;
  ASSERT_EQ(sleeper->PostReceive(receive), PostResult::kPosted);
  std::vector<Completion> got;
  for (int what = 0; what < 3; ++what) {
    const size_t before = got.size();
    while (!sleeper->ArmWait()) Until(*sleeper, got, [n = 0]() mutable { return n++ > 0; });
    ASSERT_EQ(got.size(), before);
    pollfd polled = {sleeper->wait_fd(), POLLIN, 0};
    EXPECT_EQ(poll(&polled, 1, 0), 0);
    SendRequest message;
    message.peer = peer;
    PostResult result = PostResult::kPosted;
    if (what == 0) result = sender->PostWrite(MakeWrite(peer, source, target, 0, 1));
    if (what == 1) result = sender->PostSend(message);
    if (what == 2) sender.reset();
    EXPECT_EQ(result, PostResult::kPosted);
    EXPECT_EQ(poll(&polled, 1, 10'000), 1) << what;
    EXPECT_TRUE(Until(*sleeper, got, [&] { return got.size() > before; })) << what;
  }
  EXPECT_EQ(got[0].kind, CompletionKind::kImmediate);
  EXPECT_EQ(got[1].kind, CompletionKind::kReceive);
  EXPECT_EQ(got[2].kind, CompletionKind::kPeerFault);
}

TEST(LocalDomain, NoWakeUpIsLost) {
  constexpr uint32_t kCount = 3000;
  auto ping = Make();
  auto pong = Make();
  uint64_t word = 0;
  const auto ping_region = ping->RegisterMemory(&word, 8, MemoryKind::kHost, Access::kRemoteWrite).value();
  const auto pong_region = pong->RegisterMemory(&word, 8, MemoryKind::kHost, Access::kRemoteWrite).value();
  const PeerId to_pong = ping->AddPeer(pong->address()).value();
  const PeerId to_ping = pong->AddPeer(ping->address()).value();
  const auto play = [](Domain& domain, PeerId peer, const MemoryRegion& own, const MemoryRegion& other, bool serve) {
    std::array<Completion, 8> completions;
    for (uint32_t n = 0; n < kCount; ++n) {
      const auto post = [&] { EXPECT_EQ(domain.PostWrite(MakeWrite(peer, own, other, 0, n)), PostResult::kPosted); };
      if (serve) post();
      for (bool came = false; !came;) {
        const size_t count = domain.Poll(completions);
        for (size_t i = 0; i < count; ++i) came |= completions[i].kind == CompletionKind::kImmediate;
        if (came || !domain.ArmWait()) continue;
        pollfd polled = {domain.wait_fd(), POLLIN, 0};
        ASSERT_EQ(poll(&polled, 1, 20'000), 1) << "asleep for ever at " << n;
      }
      if (!serve) post();
    }
  };
  std::thread other([&] { play(*pong, to_ping, pong_region, ping_region, false); });
  play(*ping, to_pong, ping_region, pong_region, true);
  other.join();
}

// Domains come, write to a common target and go, while the target registers and deregisters what they write to and
// frees it at once: nothing may land late. For ThreadSanitizer and AddressSanitizer.
TEST(LocalDomain, StressOfLifetimes) {
  constexpr int kSenders = 4, kLives = 40;
  auto target = Make();
  std::atomic<uint64_t> key{0}, address{0};
  std::atomic<int> running{kSenders};
  std::vector<std::thread> senders;
  for (int s = 0; s < kSenders; ++s) {
    senders.emplace_back([&, s] {
      for (int life = 0; life < kLives; ++life) {
        auto domain = Make();
        std::vector<std::byte> source(300'000, static_cast<std::byte>(s));
        const auto from = domain->RegisterMemory(source.data(), source.size(), MemoryKind::kHost, Access::kLocalOnly).value();
        const PeerId peer = domain->AddPeer(target->address()).value();
        std::vector<Completion> got;
        uint64_t posted = 0;
        for (int i = 0; i < 50; ++i) {
          MemoryRegion to;
          to.remote_key = key.load();
          to.remote_address = address.load();
          posted += domain->PostWrite(MakeWrite(peer, from, to, i % 10 == 0 ? 300'000 : i * 50, i)) == PostResult::kPosted;
          Until(*domain, got, [n = 0]() mutable { return n++ > 0; });
        }
        if (life % 2 == 0) {
          EXPECT_TRUE(Until(*domain, got, [&] { return got.size() >= posted; }));
        }
      }
      --running;
    });
  }
  std::vector<Completion> got;
  while (running > 0) {
    auto memory = std::make_unique<std::vector<std::byte>>(300'000);
    const auto region = target->RegisterMemory(memory->data(), memory->size(), MemoryKind::kHost, Access::kRemoteWrite).value();
    address = region.remote_address;
    key = region.remote_key;
    Until(*target, got, [n = 0]() mutable { return n++ > 20; });
    EXPECT_TRUE(target->DeregisterMemory(region).has_value());
    std::fill(memory->begin(), memory->end(), std::byte{1});
    memory.reset();
    got.clear();
  }
  for (std::thread& sender : senders) sender.join();
}

TEST(LocalDomain, TargetGoesWhileOthersWriteToIt) {
  for (int round = 0; round < 20; ++round) {
    auto target = Make();
    auto memory = std::make_unique<std::vector<std::byte>>(1 << 20);
    const auto region = target->RegisterMemory(memory->data(), memory->size(), MemoryKind::kHost, Access::kRemoteWrite).value();
    std::atomic<int> ready{0};
    std::vector<std::thread> senders;
    for (int s = 0; s < 2; ++s) {
      senders.emplace_back([&, peer_address = Bytes(target->address().begin(), target->address().end())] {
        auto domain = Make();
        std::vector<std::byte> source(1 << 20);
        const auto from = domain->RegisterMemory(source.data(), source.size(), MemoryKind::kHost, Access::kLocalOnly).value();
        const PeerId peer = domain->AddPeer(peer_address).value();
        ++ready;
        std::vector<Completion> got;
        uint64_t posted = 0;
        for (uint64_t n = 0; domain->peer_state(peer) == PeerState::kReady; ++n) {
          posted += domain->PostWrite(MakeWrite(peer, from, region, n % 8 == 0 ? 1 << 20 : 100, 1)) == PostResult::kPosted;
          Until(*domain, got, [k = 0]() mutable { return k++ > 0; });
        }
        EXPECT_TRUE(Until(*domain, got, [&] { return got.size() >= posted + 1; }));
        int faults = 0;
        for (const Completion& completion : got) faults += completion.kind == CompletionKind::kPeerFault;
        EXPECT_EQ(faults, 1);
        EXPECT_EQ(got.size(), posted + 1);
      });
    }
    std::vector<Completion> got;
    EXPECT_TRUE(Until(*target, got, [&] { return ready == 2 && got.size() > 100; }));
    target.reset();
    memory.reset();
    for (std::thread& sender : senders) sender.join();
  }
}

TEST(LocalDomain, LimitsOfTheTables) {
  LocalDomainOptions options;
  options.max_regions = 2;
  options.max_peers = 1;
  auto domain = Make(options);
  uint64_t word = 0;
  const auto add = [&] { return domain->RegisterMemory(&word, 8, MemoryKind::kHost, Access::kRemoteWrite); };
  const auto first = add().value();
  ASSERT_TRUE(add().has_value());
  EXPECT_EQ(add().error().code, ErrorCode::kResourceExhausted);
  EXPECT_TRUE(domain->DeregisterMemory(first).has_value());
  EXPECT_TRUE(add().has_value());
  EXPECT_EQ(domain->RegisterMemory(&word, 8, MemoryKind::kCuda, Access::kRemoteWrite).error().code, ErrorCode::kUnimplemented);
  EXPECT_FALSE(domain->RegisterMemory(&word, ~uint64_t{0}, MemoryKind::kHost, Access::kRemoteWrite).has_value());

  auto a = Make();
  auto b = Make();
  const PeerId peer = a->AddPeer(domain->address()).value();
  EXPECT_EQ(b->AddPeer(domain->address()).error().code, ErrorCode::kResourceExhausted);
  a->RemovePeer(peer);
  std::array<Completion, 4> completions;
  domain->Poll(completions);
  EXPECT_TRUE(b->AddPeer(domain->address()).has_value());
  EXPECT_GT(LocalDomainOptions{}.memory_bytes(), 1u << 20);
}

TEST(LocalDomain, MessageThatIsTooLongForItsBufferIsAnError) {
  auto a = Make();
  auto b = Make();
  std::array<std::byte, 64> bytes = {};
  const auto from = a->RegisterMemory(bytes.data(), 64, MemoryKind::kHost, Access::kLocalOnly).value();
  SendRequest message;
  message.peer = a->AddPeer(b->address()).value();
  message.source = bytes.data();
  message.local_key = from.local_key;
  message.length = 64;
  ASSERT_EQ(a->PostSend(message), PostResult::kPosted);
  ReceiveRequest receive;
  ASSERT_EQ(b->PostReceive(receive), PostResult::kPosted);
  std::array<Completion, 4> completions;
  ASSERT_EQ(b->Poll(completions), 1u);
  EXPECT_EQ(completions[0].code, ErrorCode::kOutOfRange);
  EXPECT_EQ(completions[0].length, 64u);
}

TEST(SharedMemory, RegionsKeepItAlive) {
  auto a = Make();
  auto b = Make();
  std::array<std::byte, 64> bytes = {};
  MemoryRegion region;
  {
    SharedMemory memory = AllocateShared(100).value();
    EXPECT_EQ(memory.size(), 100u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 4096, 0u);
    region = b->RegisterMemory(memory.data(), 100, MemoryKind::kHost, Access::kRemoteWrite).value();
  }
  const auto from = a->RegisterMemory(bytes.data(), 64, MemoryKind::kHost, Access::kLocalOnly).value();
  const PeerId peer = a->AddPeer(b->address()).value();
  EXPECT_EQ(a->PostWrite(MakeWrite(peer, from, region, 64, 1)), PostResult::kPosted);
}

TEST(CopyBytes, EveryAlignmentAndLength) {
  std::vector<std::byte> source(5000), target(5000);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i % 251);
  for (const bool streaming : {false, true}) {
    for (size_t offset = 0; offset < 70; offset += 3) {
      for (const size_t length : {0u, 1u, 63u, 64u, 255u, 256u, 257u, 400u, 4096u, 4100u}) {
        std::fill(target.begin(), target.end(), std::byte{0xff});
        CopyBytes(target.data() + offset, source.data() + 1, length, streaming);
        ASSERT_EQ(std::memcmp(target.data() + offset, source.data() + 1, length), 0) << offset << " " << length;
        ASSERT_EQ(target[offset + length], std::byte{0xff});
        ASSERT_EQ(target[offset > 0 ? offset - 1 : offset + length], std::byte{0xff});
      }
    }
  }
}

}  // namespace
}  // namespace jax_fabric
