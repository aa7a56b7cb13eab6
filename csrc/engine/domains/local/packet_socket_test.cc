#include "csrc/engine/domains/local/packet_socket.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <thread>

#include "csrc/base/clock.h"
#include "csrc/base/unique_fd.h"

namespace jax_fabric::local {
namespace {

ssize_t Receive(int socket, char& byte) {
  iovec payload = {&byte, 1};
  msghdr message = {};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  return ReceivePacket(socket, message, 0);
}

// With recvmsg in place of ReceivePacket it fails most times.
TEST(PacketSocket, APacketIsReadThoughItsSenderHasGone) {
  constexpr int kRounds = 20'000;
  constexpr int kEnd = -2;
  // Where there are fewer cores than threads that run, a round takes a time slice.
  const Deadline deadline = Deadline::After(SteadyClock::Get(), 5'000'000);
  std::atomic<int> next{-1};
  std::thread sender([&] {
    for (;;) {
      int raw = -1;
      while ((raw = next.exchange(-1, std::memory_order_acquire)) == -1) std::this_thread::yield();
      if (raw == kEnd) return;
      const UniqueFd socket(raw);
      EXPECT_EQ(send(raw, "x", 1, MSG_NOSIGNAL), 1);
    }
  });
  for (int round = 0; round < kRounds && !deadline.Passed(SteadyClock::Get()); ++round) {
    std::array<int, 2> sockets;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()), 0);
    const UniqueFd ours(sockets[0]);
    next.store(sockets[1], std::memory_order_release);
    char byte = 0;
    ssize_t count = -1;
    while ((count = Receive(ours.get(), byte)) < 0 && errno == EAGAIN) {
    }
    EXPECT_EQ(count, 1) << "in round " << round;
    EXPECT_EQ(byte, 'x');
    EXPECT_LE(Receive(ours.get(), byte), 0) << "read twice";
  }
  while (next.load(std::memory_order_relaxed) != -1) std::this_thread::yield();
  next.store(kEnd, std::memory_order_release);
  sender.join();
}

}  // namespace
}  // namespace jax_fabric::local
