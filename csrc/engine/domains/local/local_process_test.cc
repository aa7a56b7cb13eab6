// The local domain between processes: death, sleep, memory that cannot be shared. In a program of its own, because it
// forks children that go on without exec.
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/unique_fd.h"
#include "csrc/engine/domains/local/local_test_util.h"

namespace jax_fabric {
namespace {

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
    const timeval patience = {kPatienceUs / 1'000'000, 0};
    EXPECT_EQ(setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
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
    hello.region = Register(*domain, shared ? memory.data() : own.data(), kBytes);
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
      if (completions[i].kind != CompletionKind::kImmediate) continue;
      send(socket, reinterpret_cast<void*>(region.address), 1, 0);
    }
  }
}

// ThreadSanitizer does not like forks of a process with threads, and the descriptor server is one as long as a domain
// exists: so children come before domains.
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
    const auto region = Register(*domain, memory.data(), memory.size());
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
    EXPECT_TRUE(Until(*domain, got, [&] {
      count();
      return finished >= posted && faults > 0;
    }));
    EXPECT_EQ(finished, posted);
    EXPECT_EQ(faults, 1u);
    EXPECT_EQ(domain->peer_state(peer), PeerState::kFailed);
    EXPECT_EQ(domain->PostWrite(MakeWrite(peer, region, child.region(), 1, 1)), PostResult::kRejected);
    EXPECT_NE(domain->last_error().find("peer 0 (process "), std::string::npos) << domain->last_error();
    EXPECT_TRUE(domain->DeregisterMemory(region).has_value());
  }
}

TEST_F(LocalProcess, AHundredRestartsLeaveNothingBehind) {
  constexpr int kRestarts = 100, kWarmUp = 20;
  // One incarnation after the other; those to come sleep.
  std::deque<std::unique_ptr<Child>> incarnations;
  for (int i = 0; i < kRestarts; ++i) {
    incarnations.push_back(std::make_unique<Child>(true, [](Domain& domain, const MemoryRegion& region, int socket) {
      std::byte go;
      if (recv(socket, &go, 1, 0) == 1) EchoFirstByte(domain, region, socket);
    }));
  }
  auto domain = Make();
  std::vector<std::byte> source(1 << 20, std::byte{0x33});
  const auto from = Register(*domain, source.data(), source.size(), Access::kLocalOnly);
  std::vector<Completion> got;
  int descriptors = 0, mappings = 0, threads = 0;
  for (int round = 0; round < kRestarts; ++round) {
    SCOPED_TRACE(round);
    Child& child = *incarnations.front();
    const std::byte go{1};
    child.Tell({&go, 1});
    const PeerId peer = domain->AddPeer(child.address()).value();
    if (round % 4 != 3) {  // else it dies in the middle of the handshake
      ASSERT_TRUE(Until(*domain, got, [&] { return domain->peer_state(peer) == PeerState::kReady; }))
          << "state " << static_cast<int>(domain->peer_state(peer)) << ": " << domain->last_error();
      ASSERT_EQ(domain->PostWrite(MakeWrite(peer, from, child.region(), 100, 1)), PostResult::kPosted);
      const size_t before = got.size();
      ASSERT_TRUE(Until(*domain, got, [&] { return got.size() > before; }));
      ASSERT_EQ(got.back().code, ErrorCode::kOk) << domain->last_error();
      std::byte first{0};
      ASSERT_EQ(child.Receive(&first, 1), 1);
      ASSERT_EQ(first, std::byte{0x33});
    }
    if (round % 4 == 1) {  // or of transfers
      for (int i = 0; i < 8; ++i) domain->PostWrite(MakeWrite(peer, from, child.region(), 1 << 20, 2));
    }
    child.Kill();
    ASSERT_TRUE(Until(*domain, got, [&] { return domain->peer_state(peer) == PeerState::kFailed; }));
    domain->RemovePeer(peer);
    EXPECT_EQ(domain->peer_state(peer), PeerState::kRemoved);
    incarnations.pop_front();  // with its socket
    if (round + 1 == kWarmUp) {
      descriptors = CountDescriptors(), mappings = CountMappings(), threads = CountThreads();
    }
  }
  EXPECT_EQ(CountDescriptors(), descriptors - (kRestarts - kWarmUp));
  EXPECT_LE(CountMappings(), mappings);
  EXPECT_EQ(CountThreads(), threads);
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
    const auto region = Register(*domain, source.data(), source.size(), Access::kLocalOnly);
    const PeerId peer = domain->AddPeer(child.address()).value();
    std::vector<Completion> got;
    ASSERT_TRUE(Until(*domain, got, [&] { return domain->peer_state(peer) == PeerState::kReady; }));
    const std::string path = domain->peer_path(peer);
    EXPECT_NE(log.find(path), std::string::npos) << log;
    if (!use_process_vm) {
      EXPECT_EQ(path, "shared memory and bounce slots");
    }
    EXPECT_EQ(domain->MapRemote(peer, child.region().remote_address, child.region().remote_key, 1), nullptr);

    ASSERT_EQ(domain->PostWrite(MakeWrite(peer, region, child.region(), 1 << 20, 9)), PostResult::kPosted)
        << domain->last_error();
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
      const auto region = Register(domain, memory.data(), memory.size());
      send(socket, &region, sizeof(region), 0);
      if (recv(socket, &byte, 1, 0) != 1) return;
      if (!domain.DeregisterMemory(region).has_value()) return;
    }
  });
  auto domain = Make();
  std::vector<std::byte> source(100, std::byte{5});
  const auto from = Register(*domain, source.data(), source.size(), Access::kLocalOnly);
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

}  // namespace
}  // namespace jax_fabric
