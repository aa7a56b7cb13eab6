#include "csrc/benchmarks/process_pair.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

namespace jax_fabric::benchmarks {
namespace {

Result<std::span<std::byte>> Map(uint64_t bytes, int flags) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return MakeError(ErrorCode::kResourceExhausted, "mmap of {} bytes: {}", bytes, strerror(errno));
  return std::span<std::byte>(static_cast<std::byte*>(memory), bytes);
}

Status Exactly(ssize_t moved, size_t bytes) {
  if (moved == static_cast<ssize_t>(bytes)) return {};
  return MakeError(ErrorCode::kUnavailable, "the other process has ended");
}

Status SendBytes(int socket, ByteView bytes) {
  const uint64_t size = bytes.size();
  JF_RETURN_IF_ERROR(Exactly(send(socket, &size, sizeof(size), MSG_NOSIGNAL), sizeof(size)));
  return Exactly(send(socket, bytes.data(), size, MSG_NOSIGNAL), size);
}

Result<Bytes> ReceiveBytes(int socket) {
  pollfd polled = {socket, POLLIN, 0};
  if (poll(&polled, 1, static_cast<int>(kTimeoutUs / 1000)) != 1) {
    return MakeError(ErrorCode::kDeadlineExceeded, "the other process says nothing for {} s", kTimeoutUs / 1'000'000);
  }
  uint64_t size = 0;
  JF_RETURN_IF_ERROR(Exactly(recv(socket, &size, sizeof(size), MSG_WAITALL), sizeof(size)));
  Bytes bytes(size);
  if (size == 0) return bytes;  // a read of nothing waits for something
  JF_RETURN_IF_ERROR(Exactly(recv(socket, bytes.data(), size, MSG_WAITALL), size));
  return bytes;
}

Status SendIntroduction(int socket, const Introduction& own) {
  JF_RETURN_IF_ERROR(SendBytes(socket, own.address));
  JF_RETURN_IF_ERROR(SendBytes(socket, own.memory));
  return SendBytes(socket, std::as_bytes(std::span(&own.immediate, 1)));
}

Result<Introduction> ReceiveIntroduction(int socket) {
  Introduction other;
  JF_ASSIGN_OR_RETURN(other.address, ReceiveBytes(socket));
  JF_ASSIGN_OR_RETURN(other.memory, ReceiveBytes(socket));
  JF_ASSIGN_OR_RETURN(const Bytes immediate, ReceiveBytes(socket));
  std::memcpy(&other.immediate, immediate.data(), std::min(immediate.size(), sizeof(other.immediate)));
  return other;
}

}  // namespace

Result<std::unique_ptr<ProcessPair>> ProcessPair::Start(uint64_t memory_bytes, const Maker& make) {
  std::unique_ptr<ProcessPair> pair(new ProcessPair);
  JF_ASSIGN_OR_RETURN(pair->source_, Map(memory_bytes, MAP_PRIVATE));
  JF_ASSIGN_OR_RETURN(pair->target_, Map(memory_bytes, MAP_SHARED));
  JF_ASSIGN_OR_RETURN(const auto shared, Map(sizeof(Shared), MAP_SHARED));
  pair->shared_ = new (shared.data()) Shared;
  JF_RETURN_IF_ERROR(pair->Fork(make));
  JF_ASSIGN_OR_RETURN(pair->contenders_, make(Role::kWriter, pair->source_));
  JF_RETURN_IF_ERROR(pair->Meet());
  return pair;
}

ProcessPair::~ProcessPair() {
  contenders_.clear();
  if (child_ > 0) {
    Turn(kQuit);
    waitpid(child_, nullptr, 0);
  }
  if (shared_ != nullptr) munmap(shared_, sizeof(Shared));
  munmap(source_.data(), source_.size());
  munmap(target_.data(), target_.size());
}

Status ProcessPair::Fork(const Maker& make) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) {
    return MakeError(ErrorCode::kResourceExhausted, "socketpair: {}", strerror(errno));
  }
  socket_ = UniqueFd(sockets[0]);
  UniqueFd other(sockets[1]);
  child_ = fork();
  if (child_ < 0) return MakeError(ErrorCode::kResourceExhausted, "fork: {}", strerror(errno));
  if (child_ > 0) return {};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Status status = RunTarget(make, other.get());
  if (!status) std::fprintf(stderr, "target: %s\n", status.error().message.c_str());
  _exit(status ? 0 : 1);
}

Status ProcessPair::RunTarget(const Maker& make, int socket) {
  JF_ASSIGN_OR_RETURN(auto contenders, make(Role::kTarget, target_));
  for (const auto& each : contenders) {
    JF_ASSIGN_OR_RETURN(const Introduction own, each->Introduce());
    JF_RETURN_IF_ERROR(SendIntroduction(socket, own));
    JF_ASSIGN_OR_RETURN(const Introduction writer, ReceiveIntroduction(socket));
    JF_RETURN_IF_ERROR(each->Accept(writer));
  }
  JF_RETURN_IF_ERROR(SendBytes(socket, {}));  // all have accepted
  for (size_t turn = 0; (turn = shared_->turn.load(std::memory_order_acquire)) != kQuit;) contenders[turn]->Poll();
  return {};
}

Status ProcessPair::Meet() {
  std::vector<Introduction> targets;
  for (const auto& each : contenders_) {
    JF_ASSIGN_OR_RETURN(const Introduction own, each->Introduce());
    JF_RETURN_IF_ERROR(SendIntroduction(socket_.get(), own));
    JF_ASSIGN_OR_RETURN(Introduction target, ReceiveIntroduction(socket_.get()));
    targets.push_back(std::move(target));
  }
  JF_RETURN_IF_ERROR(ReceiveBytes(socket_.get()));
  for (size_t i = 0; i < contenders_.size(); ++i) {
    Turn(i);
    JF_RETURN_IF_ERROR(contenders_[i]->Connect(targets[i]));
  }
  return {};
}

}  // namespace jax_fabric::benchmarks
