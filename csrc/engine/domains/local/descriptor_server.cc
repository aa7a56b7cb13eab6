#include "csrc/engine/domains/local/descriptor_server.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/base/random_bytes.h"
#include "csrc/engine/domains/local/hand_over.h"
#include "csrc/engine/domains/local/process_hub.h"

namespace jax_fabric::local {
namespace {

constexpr size_t kMaxClients = 256;
// Longer than clients wait for us (connect_timeout_us): to give up is theirs, and where there is too much to do their
// worker may not run for seconds.
constexpr int64_t kRequestTimeoutUs = 10'000'000;

bool SameUser(int socket) {
  ucred credentials = {};
  socklen_t length = sizeof(credentials);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 && credentials.uid == geteuid();
}

pid_t PeerPid(int socket) {
  ucred credentials = {};
  socklen_t length = sizeof(credentials);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 ? credentials.pid : -1;
}

void Reply(int socket, const DescriptorReply& reply, std::span<const int> descriptors) {
  iovec payload = {const_cast<DescriptorReply*>(&reply), sizeof(reply)};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  // The reply fits into an empty socket buffer. A client that has gone sees nothing, which is right.
  [[maybe_unused]] const ssize_t ignored = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ReplyError(int socket, const Error& error) { Reply(socket, Refusal(error), {}); }

}  // namespace

Result<std::shared_ptr<DescriptorServer>> DescriptorServer::Start(FindEndpoint find) {
  std::shared_ptr<DescriptorServer> server(new DescriptorServer());
  server->find_ = std::move(find);
  JF_ASSIGN_OR_RETURN(const uint64_t high, RandomId());
  JF_ASSIGN_OR_RETURN(const uint64_t low, RandomId());
  server->socket_name_ = fmt::format("jax_fabric-{:016x}{:016x}", high, low);

  server->listener_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  server->stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  sockaddr_un address;
  const socklen_t length = MakeAbstractName(server->socket_name_, address);
  if (!server->listener_.valid() || !server->stop_.valid() ||
      bind(server->listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(server->listener_.get(), SOMAXCONN) != 0) {
    return MakeError(ErrorCode::kResourceExhausted, "local domain: cannot listen on the Unix socket @{}: {}",
                     server->socket_name_, strerror(errno));
  }
  // Signals are for the threads of the user, who has handlers and expects EINTR there.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(server->thread_.native_handle(), "jf-local-fds");
  return server;
}

DescriptorServer::~DescriptorServer() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void DescriptorServer::Run() {
  const Clock& clock = SteadyClock::Get();
  std::vector<pollfd> polled;
  for (;;) {
    polled.clear();
    polled.push_back({stop_.get(), POLLIN, 0});
    // A full house leaves new clients in the listen queue.
    polled.push_back({clients_.size() < kMaxClients ? listener_.get() : -1, POLLIN, 0});
    for (const Client& client : clients_) polled.push_back({client.socket.get(), POLLIN, 0});

    poll(polled.data(), polled.size(), clients_.empty() ? -1 : static_cast<int>(kRequestTimeoutUs / 1000));
    if (polled[0].revents != 0) return;

    std::vector<Client> waiting;
    for (size_t i = 0; i < clients_.size(); ++i) {
      const bool goes_on = polled[i + 2].revents == 0 || Serve(clients_[i]);
      if (goes_on && !clients_[i].deadline.Passed(clock)) waiting.push_back(std::move(clients_[i]));
    }
    clients_ = std::move(waiting);
    if (polled[1].revents != 0) Accept();
  }
}

void DescriptorServer::Accept() {
  while (clients_.size() < kMaxClients) {
    UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client.valid()) {
      // Out of descriptors: the listener stays readable, so go slowly until some are free.
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    clients_.push_back({std::move(client), Deadline::After(SteadyClock::Get(), kRequestTimeoutUs)});
  }
}

bool DescriptorServer::Serve(Client& client) const {
  // Room for one byte more than any packet may have.
  std::array<std::byte, std::max(sizeof(DescriptorRequest), sizeof(DescriptorProof)) + 1> buffer;
  const int socket = client.socket.get();
  const ssize_t count = recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (count <= 0) return false;
  const ByteView packet = ByteView(buffer).first(static_cast<size_t>(count));
  if (client.endpoint == nullptr) {
    const std::optional<DescriptorRequest> request = ParseRequest(packet);
    return request.has_value() && Challenge(client, *request);
  }
  const Status proven = CheckProof(client.request, client.challenge, packet, client.endpoint->key.get());
  if (proven.has_value()) {
    Answer(client);
  } else {
    Log(LogLevel::kWarning, "local domain: process {} wanted to connect: {}", PeerPid(socket), proven.error().message);
    ReplyError(socket, proven.error());
  }
  return false;
}

bool DescriptorServer::Challenge(Client& client, const DescriptorRequest& request) const {
  const int socket = client.socket.get();
  const auto refuse = [&](const Error& error) {
    ReplyError(socket, error);
    return false;
  };
  if (!SameUser(socket)) {
    return refuse({ErrorCode::kPermissionDenied, "the peer belongs to another user: run all ranks as one user"});
  }
  client.endpoint = find_(request.incarnation);
  if (client.endpoint == nullptr) {
    const auto text = fmt::format("domain {:016x} is closed: its address is stale", request.incarnation);
    return refuse({ErrorCode::kUnavailable, text});
  }
  const Result<DescriptorChallenge> challenge = MakeChallenge(request, client.endpoint->key.get());
  if (!challenge.has_value()) return refuse(challenge.error());
  client.request = request;
  client.challenge = *challenge;
  return send(socket, &client.challenge, sizeof(client.challenge), MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

void DescriptorServer::Answer(const Client& client) const {
  const int socket = client.socket.get();
  DescriptorReply reply;
  if (client.request.kind == DescriptorRequest::kMailbox) {
    const Mailbox& mailbox = *client.endpoint->mailbox;
    const int descriptors[] = {mailbox.memory_fd(), mailbox.doorbell_fd()};
    return Reply(socket, reply, descriptors);
  }
  if (client.request.kind != DescriptorRequest::kMemory) {
    return ReplyError(socket, Error{ErrorCode::kUnimplemented,
                                    fmt::format("request of kind {} is unknown here", client.request.kind)});
  }
  const auto file = client.endpoint->regions->FileOf(client.request.key);
  if (!file.has_value()) return ReplyError(socket, file.error());
  reply.memory_id = (*file)->id;
  const int descriptors[] = {(*file)->fd.get()};
  Reply(socket, reply, descriptors);
}

}  // namespace jax_fabric::local
