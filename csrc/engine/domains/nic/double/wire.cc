#include "csrc/engine/domains/nic/double/wire.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <unordered_map>
#include <utility>

namespace jax_fabric::nic_double {
namespace {

socklen_t FillName(sockaddr_un& name, uint64_t device) {
  name = {};
  name.sun_family = AF_UNIX;
  const int length = std::snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "jf-nic-double-%016llx",
                                   static_cast<unsigned long long>(device));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}

enum class Sent { kYes, kFull, kGone };

Sent SendTo(int socket, uint64_t to, const Packet& packet) {
  sockaddr_un name;
  const socklen_t size = FillName(name, to);
  std::array<iovec, 2> parts = {iovec{const_cast<PacketHeader*>(&packet.header), sizeof(packet.header)},
                                iovec{const_cast<std::byte*>(packet.bytes.data()), packet.bytes.size()}};
  msghdr message = {};
  message.msg_name = &name;
  message.msg_namelen = size;
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  if (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return Sent::kYes;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == EINTR ? Sent::kFull : Sent::kGone;
}

}  // namespace

// Devices of this process.
struct Wire::Directory {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::shared_ptr<Inbox>> inboxes;
};

Wire::Directory& Wire::directory() {
  static auto* directory = new Directory();
  return *directory;
}

Wire::Wire(uint64_t device)
    : device_(device),
      socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)),
      wake_(std::make_shared<Inbox>()) {
  wake_->fd = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  sockaddr_un name;
  const socklen_t size = FillName(name, device);
  if (socket_.get() >= 0 && bind(socket_.get(), reinterpret_cast<sockaddr*>(&name), size) != 0) socket_ = UniqueFd();
  const std::lock_guard<std::mutex> lock(directory().mutex);
  directory().inboxes[device] = wake_;
}

Wire::~Wire() {
  const std::lock_guard<std::mutex> lock(directory().mutex);
  directory().inboxes.erase(device_);
}

void Wire::Send(uint64_t to, Packet packet) {
  packet.header.from = device_;
  std::shared_ptr<Inbox> inbox;
  {
    const std::lock_guard<std::mutex> lock(directory().mutex);
    if (const auto found = directory().inboxes.find(to); found != directory().inboxes.end()) inbox = found->second;
  }
  if (inbox == nullptr) {
    waiting_.emplace_back(to, std::move(packet));
    Flush();
    return;
  }
  bool first = false;
  {
    const std::lock_guard<std::mutex> lock(inbox->mutex);
    first = inbox->packets.empty();
    inbox->packets.push_back(std::move(packet));
  }
  if (first) eventfd_write(inbox->fd.get(), 1);
}

bool Wire::Reaches(uint64_t device) const {
  {
    const std::lock_guard<std::mutex> lock(directory().mutex);
    if (directory().inboxes.contains(device)) return true;
  }
  const UniqueFd probe(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un name;
  const socklen_t size = FillName(name, device);
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&name), size) == 0 || errno != ECONNREFUSED;
}

bool Wire::Flush() {
  std::set<uint64_t> full;  // what is for them stays, in its order
  std::erase_if(waiting_, [&](const auto& each) {
    if (full.contains(each.first)) return false;
    if (SendTo(socket_.get(), each.first, each.second) != Sent::kFull) return true;  // to one that is gone: lost
    full.insert(each.first);
    return false;
  });
  return !waiting_.empty();
}

void Wire::Wait(int timeout_ms) {
  std::array<pollfd, 2> polled = {pollfd{socket_.get(), POLLIN, 0}, pollfd{wake_->fd.get(), POLLIN, 0}};
  if (poll(polled.data(), polled.size(), timeout_ms) <= 0) return;
  eventfd_t count = 0;
  if (polled[1].revents != 0) eventfd_read(wake_->fd.get(), &count);
}

void Wire::Wake() { eventfd_write(wake_->fd.get(), 1); }

std::vector<Packet> Wire::Receive() {
  std::vector<Packet> packets;
  {
    const std::lock_guard<std::mutex> lock(wake_->mutex);
    packets.swap(wake_->packets);
  }
  constexpr int kAtOnce = 64;
  for (int i = 0; i < kAtOnce; ++i) {
    Packet packet;
    packet.bytes.resize(kMaxPayload);
    std::array<iovec, 2> parts = {iovec{&packet.header, sizeof(packet.header)},
                                  iovec{packet.bytes.data(), packet.bytes.size()}};
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t size = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (size < static_cast<ssize_t>(sizeof(packet.header))) break;
    packet.bytes.resize(static_cast<size_t>(size) - sizeof(packet.header));
    packets.push_back(std::move(packet));
  }
  return packets;
}

}  // namespace jax_fabric::nic_double
