#include "csrc/engine/domains/local/descriptor_client.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "csrc/engine/domains/local/hand_over.h"
#include "csrc/engine/domains/local/packet_socket.h"

namespace jax_fabric::local {
namespace {

// Collects the descriptors of a message, so that they are closed whatever happens next.
std::vector<UniqueFd> TakeDescriptors(msghdr& message) {
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

}  // namespace

DescriptorClient::DescriptorClient(const LocalAddress& server, const DescriptorRequest& request,
                                   std::shared_ptr<const FabricKey> key, Deadline deadline)
    : socket_name_(server.socket_name),
      peer_pid_(server.process.pid),
      request_(request),
      key_(std::move(key)),
      deadline_(deadline) {}

std::optional<Result<ReceivedDescriptors>> DescriptorClient::Poll() {
  if (!socket_.valid()) {
    const Result<bool> connected = Connect();
    if (!connected.has_value()) return tl::unexpected<Error>(connected.error());
  }
  if (socket_.valid()) {
    if (auto received = Receive()) return received;
  }
  if (!deadline_.Passed(SteadyClock::Get())) return std::nullopt;
  return MakeError(ErrorCode::kDeadlineExceeded, "process {} does not answer on its Unix socket @{} (is it stopped?)",
                   peer_pid_, socket_name_);
}

Result<ReceivedDescriptors> DescriptorClient::Wait() {
  for (;;) {
    if (auto result = Poll()) return std::move(*result);
    pollfd polled = {socket_.get(), POLLIN, 0};  // -1 is ignored: then this only sleeps
    poll(&polled, 1, 1);
  }
}

Result<bool> DescriptorClient::Connect() {
  UniqueFd connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!connection.valid()) {
    return MakeError(ErrorCode::kResourceExhausted, "local domain: socket failed: {}", strerror(errno));
  }
  sockaddr_un address;
  const socklen_t length = MakeAbstractName(socket_name_, address);
  if (connect(connection.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (errno == EAGAIN || errno == EINTR) return false;  // the peer has many connections to accept
    return MakeError(ErrorCode::kUnavailable,
                     "process {} does not listen on its Unix socket @{} ({}): its address is stale", peer_pid_,
                     socket_name_, strerror(errno));
  }
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0 || credentials.uid != geteuid()) {
    return MakeError(ErrorCode::kPermissionDenied,
                     "the Unix socket @{} belongs to user {} and this process to {}: run all ranks as one user",
                     socket_name_, credentials.uid, geteuid());
  }
  JF_RETURN_IF_ERROR(SetNonce(request_));
  if (send(connection.get(), &request_, sizeof(request_), MSG_NOSIGNAL) != sizeof(request_)) {
    return MakeError(ErrorCode::kUnavailable, "process {} closed its Unix socket @{}: {}", peer_pid_, socket_name_,
                     strerror(errno));
  }
  socket_ = std::move(connection);
  return true;
}

Status DescriptorClient::SendProof(ByteView challenge) {
  JF_ASSIGN_OR_RETURN(const DescriptorProof proof, AnswerChallenge(request_, challenge, key_.get()));
  if (send(socket_.get(), &proof, sizeof(proof), MSG_NOSIGNAL) == sizeof(proof)) return {};
  return MakeError(ErrorCode::kUnavailable, "the connection was closed: {}", strerror(errno));
}

tl::unexpected<Error> DescriptorClient::Failure(const Error& error) const {
  return MakeError(error.code, "process {} on its Unix socket @{}: {}", peer_pid_, socket_name_, error.message);
}

std::optional<Result<ReceivedDescriptors>> DescriptorClient::Receive() {
  // The longest packet, and a byte to see that one is too long.
  std::array<std::byte, sizeof(DescriptorReply) + 1> buffer;
  iovec payload = {buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  msghdr message = {};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t count = ReceivePacket(socket_.get(), message, MSG_CMSG_CLOEXEC);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;

  ReceivedDescriptors received;
  if (count > 0) received.descriptors = TakeDescriptors(message);
  const ByteView packet = ByteView(buffer).first(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  if (!challenged_) {
    if (const Status sent = SendProof(packet); !sent.has_value()) return Failure(sent.error());
    challenged_ = true;
    return std::nullopt;
  }
  const Result<DescriptorReply> reply = ParseReply(packet);
  if (!reply.has_value()) return Failure(reply.error());
  const size_t expected = request_.kind == DescriptorRequest::kMailbox ? 2 : 1;
  if (received.descriptors.size() != expected) {
    return MakeError(ErrorCode::kResourceExhausted,
                     "process {} sent {} file descriptors and {} arrived: raise the limit of open files (ulimit -n)",
                     peer_pid_, expected, received.descriptors.size());
  }
  received.memory_id = reply->memory_id;
  return received;
}

}  // namespace jax_fabric::local
