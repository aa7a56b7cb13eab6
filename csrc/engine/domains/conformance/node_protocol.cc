#include "csrc/engine/domains/conformance/node_protocol.h"

#include <sys/socket.h>

#include <cerrno>

namespace jax_fabric::conformance {
namespace {

bool SendAll(int socket, const void* data, size_t count) {
  for (size_t done = 0; done < count;) {
    const ssize_t n = send(socket, static_cast<const std::byte*>(data) + done, count - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool ReceiveAll(int socket, void* data, size_t count) {
  for (size_t done = 0; done < count;) {
    const ssize_t n = recv(socket, static_cast<std::byte*>(data) + done, count - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

bool Parcel::Send(int socket) const {
  const uint64_t size = bytes_.size();
  return SendAll(socket, &size, sizeof(size)) && SendAll(socket, bytes_.data(), size);
}

Result<Parcel> Parcel::Receive(int socket) {
  uint64_t size = 0;
  std::vector<std::byte> bytes;
  if (ReceiveAll(socket, &size, sizeof(size))) {
    bytes.resize(size);
    if (ReceiveAll(socket, bytes.data(), size)) return Parcel(std::move(bytes));
  }
  return MakeError(ErrorCode::kUnavailable, "the node is gone");
}

}  // namespace jax_fabric::conformance
