#include "csrc/engine/domains/conformance/remote_node.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "csrc/engine/domains/conformance/node_server.h"

namespace jax_fabric::conformance {
namespace {

Result<std::pair<UniqueFd, UniqueFd>> MakeSocketPair() {
  std::array<int, 2> sockets;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    return MakeError(ErrorCode::kInternal, "socketpair: {}", strerror(errno));
  }
  return std::pair(UniqueFd(sockets[0]), UniqueFd(sockets[1]));
}

template <typename... Args>
Parcel Pack(const Args&... args) {
  Parcel parcel;
  (parcel.Put(args), ...);
  return parcel;
}

}  // namespace

Result<std::unique_ptr<RemoteNode>> RemoteNode::StartThread(const std::string& fabric, const DomainShape& shape) {
  JF_ASSIGN_OR_RETURN(auto sockets, MakeSocketPair());
  std::unique_ptr<RemoteNode> node(new RemoteNode(std::move(sockets.first)));
  node->thread_ = std::thread([fabric, shape, socket = std::move(sockets.second)]() mutable {
    RunNodeServer(std::move(socket), fabric, shape);
  });
  JF_RETURN_IF_ERROR(node->AwaitStart());
  return node;
}

Result<std::unique_ptr<RemoteNode>> RemoteNode::StartProcess(const std::string& fabric, const DomainShape& shape) {
  JF_ASSIGN_OR_RETURN(auto sockets, MakeSocketPair());
  std::unique_ptr<RemoteNode> node(new RemoteNode(std::move(sockets.first)));
  constexpr int kChildSocket = 3;
  std::array<std::string, 6> words = {"conformance_node",
                                      "--conformance_node",
                                      fabric,
                                      std::to_string(kChildSocket),
                                      std::to_string(shape.max_outstanding),
                                      std::to_string(shape.max_receives)};
  std::array<char*, 7> arguments = {};
  for (size_t i = 0; i < words.size(); ++i) arguments[i] = words[i].data();

  // dup2 onto itself would keep close-on-exec, so the socket must not have the child's number already.
  const UniqueFd high(fcntl(sockets.second.get(), F_DUPFD_CLOEXEC, 64));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, high.get(), kChildSocket);
  const int error = posix_spawn(&node->pid_, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return MakeError(ErrorCode::kInternal, "posix_spawn: {}", strerror(error));
  sockets.second.Close();
  JF_RETURN_IF_ERROR(node->AwaitStart());
  return node;
}

RemoteNode::~RemoteNode() {
  if (socket_.valid()) {
    Parcel().Put(Command::kQuit).Send(socket_.get());
    socket_.Close();
  }
  if (thread_.joinable()) thread_.join();
  if (pid_ <= 0) return;
  int status = 0;
  waitpid(pid_, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "node process " << pid_ << " ended with " << status;
}

void RemoteNode::Kill() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  socket_.Close();  // a thread ends when it sees that
  if (thread_.joinable()) thread_.join();
}

Status RemoteNode::AwaitStart() {
  JF_ASSIGN_OR_RETURN(Parcel answer, Parcel::Receive(socket_.get()));
  return answer.GetResult<void>();
}

Parcel RemoteNode::Call(Command command, const Parcel& arguments) {
  Parcel request;
  request.Put(command).Append(arguments);
  if (request.Send(socket_.get())) {
    if (auto answer = Parcel::Receive(socket_.get())) return std::move(*answer);
  }
  // Once: suites ask again until their deadline.
  if (!std::exchange(dead_, true)) ADD_FAILURE() << "node died at command " << static_cast<int>(command);
  return Parcel(std::vector<std::byte>(4096));
}

PostOutcome RemoteNode::CallPost(Command command, const Parcel& arguments) {
  Parcel answer = Call(command, arguments);
  PostOutcome outcome;
  outcome.posted = answer.Get<uint64_t>();
  outcome.last = answer.Get<PostResult>();
  outcome.error = answer.GetText();
  return outcome;
}

Bytes RemoteNode::Address() { return Call(Command::kAddress, {}).GetAll<std::byte>(); }
DomainLimits RemoteNode::Limits() { return Call(Command::kLimits, {}).Get<DomainLimits>(); }
Result<PeerId> RemoteNode::AddPeer(ByteView address) {
  return Call(Command::kAddPeer, Parcel().PutAll(address)).GetResult<PeerId>();
}
PeerState RemoteNode::State(PeerId peer) { return Call(Command::kState, Pack(peer)).Get<PeerState>(); }
void RemoteNode::RemovePeer(PeerId peer) { Call(Command::kRemovePeer, Pack(peer)); }
std::string RemoteNode::LastError() { return Call(Command::kLastError, {}).GetText(); }

Result<uint64_t> RemoteNode::Allocate(uint64_t length) {
  return Call(Command::kAllocate, Pack(length)).GetResult<uint64_t>();
}
Result<MemoryRegion> RemoteNode::Register(uint64_t address, uint64_t length, Access access) {
  return Call(Command::kRegister, Pack(address, length, access)).GetResult<MemoryRegion>();
}
Status RemoteNode::Deregister(const MemoryRegion& region) {
  return Call(Command::kDeregister, Pack(region)).GetResult<void>();
}

PostOutcome RemoteNode::PostWrites(std::span<const WriteRequest> requests) {
  return CallPost(Command::kPostWrites, Parcel().PutAll(requests));
}
PostOutcome RemoteNode::PostSends(std::span<const SendRequest> requests) {
  return CallPost(Command::kPostSends, Parcel().PutAll(requests));
}
PostOutcome RemoteNode::PostReceives(std::span<const ReceiveRequest> requests) {
  return CallPost(Command::kPostReceives, Parcel().PutAll(requests));
}
std::vector<Completion> RemoteNode::Poll() { return Call(Command::kPoll, {}).GetAll<Completion>(); }

void RemoteNode::Fill(uint64_t address, uint64_t length, uint64_t seed) {
  Call(Command::kFill, Pack(address, length, seed));
}
void RemoteNode::FillByte(uint64_t address, uint64_t length, uint8_t value) {
  Call(Command::kFillByte, Pack(address, length, uint64_t{value}));
}
uint64_t RemoteNode::Check(uint64_t address, uint64_t length, uint64_t seed) {
  return Call(Command::kCheck, Pack(address, length, seed)).Get<uint64_t>();
}
uint64_t RemoteNode::CheckByte(uint64_t address, uint64_t length, uint8_t value) {
  return Call(Command::kCheckByte, Pack(address, length, uint64_t{value})).Get<uint64_t>();
}
uint64_t RemoteNode::MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) {
  return Call(Command::kMapRemote, Pack(peer, remote_address, remote_key, length)).Get<uint64_t>();
}

}  // namespace jax_fabric::conformance
