// EfaDomain: what the completion queue says.
#include <algorithm>
#include <array>
#include <utility>

#include "csrc/engine/domains/efa/efa_domain_impl.h"

namespace jax_fabric::efa {
namespace {

constexpr size_t kBatch = 64;
constexpr uint32_t kPollsPerHousekeeping = 16;

// Providers say most of what an entry is about, and not all of them everything.
bool ComesFromPeer(const fi_cq_data_entry& entry) {
  if ((entry.flags & (FI_RECV | FI_REMOTE_WRITE)) != 0) return true;
  if ((entry.flags & FI_REMOTE_CQ_DATA) != 0 && (entry.flags & (FI_WRITE | FI_SEND)) == 0) return true;
  return entry.op_context == nullptr || Operation::Of(entry.op_context)->kind == Operation::Kind::kReceive;
}

// What a connection's end looks like, and in software providers also a refused write: they end the connection for it.
bool MayBeDeath(int error) {
  switch (error) {
    case FI_ECANCELED:
    case FI_ENOTCONN:
    case FI_ECONNRESET:
    case FI_ECONNABORTED:
    case FI_ECONNREFUSED:
    case FI_ESHUTDOWN:
    case FI_EHOSTUNREACH:
    case FI_EHOSTDOWN:
    case FI_ETIMEDOUT:
    case FI_EIO:
    case EPIPE:
      return true;
    default:
      return false;
  }
}

// EFA's status for a remote key, range or access that is refused; its provider makes it FI_EINVAL.
constexpr int kEfaBadRemoteAddress = 7;

ErrorCode CodeOf(const fi_cq_err_entry& error, bool is_efa) {
  if (is_efa && error.prov_errno == kEfaBadRemoteAddress) return ErrorCode::kPermissionDenied;
  switch (error.err) {
    case FI_EACCES:
    case FI_EPERM:
    case FI_EKEYREJECTED:
    case FI_ENOKEY:
    case FI_EFAULT:
      return ErrorCode::kPermissionDenied;
    case FI_ENOMEM:
    case FI_ENORX:
    case FI_EOVERRUN:
      return ErrorCode::kResourceExhausted;
    default:
      return ErrorCode::kInternal;
  }
}

}  // namespace

size_t EfaDomain::Poll(std::span<Completion> completions) {
  size_t count = reports_.empty() ? 0 : TakeReports(completions);
  if (broken_.empty()) {
    count += ReadQueue(completions.subspan(count));
    if (!immediates_.empty()) PostImmediates();
  }
  if (!loopback_.empty()) AdvanceLoopback();
  if (waiting_outboxes_ > 0) FlushOutboxes();
  if (++polls_ % kPollsPerHousekeeping == 0) Housekeep();
  return reports_.empty() ? count : count + TakeReports(completions.subspan(count));
}

size_t EfaDomain::TakeReports(std::span<Completion> out) {
  size_t count = 0;
  for (; count < out.size() && !reports_.empty(); ++count) {
    Report& report = reports_.front();
    out[count] = report.completion;
    if (!report.cause.empty()) last_error_ = std::move(report.cause);
    if (report.completion.kind == CompletionKind::kWrite || report.completion.kind == CompletionKind::kSend) {
      --outstanding_;
    }
    reports_.pop_front();
  }
  return count;
}

size_t EfaDomain::ReadQueue(std::span<Completion> out) {
  if (out.empty()) return 0;
  std::array<fi_cq_data_entry, kBatch> entries;
  const auto read = fi_cq_read(endpoint_->queue(), entries.data(), std::min(kBatch, out.size()));
  if (read == -FI_EAVAIL) return ReadError(out.front());
  size_t count = 0;
  bool arrived = false;
  for (int64_t i = 0; i < read; ++i) {
    const fi_cq_data_entry& entry = entries[static_cast<size_t>(i)];
    if (ComesFromPeer(entry)) {
      count += Arrive(entry, out[count]) ? 1 : 0;
      arrived = true;
    } else {
      count += Finish(*Operation::Of(entry.op_context), nullptr, out[count]) ? 1 : 0;
    }
  }
  if (arrived) PostReceives();
  return count;
}

size_t EfaDomain::ReadError(Completion& out) {
  std::array<std::byte, 256> data;
  fi_cq_err_entry error = {};
  error.err_data = data.data();
  error.err_data_size = data.size();
  if (fi_cq_readerr(endpoint_->queue(), &error, 0) != 1) return 0;
  // Of a write of a peer's that failed half way there is no operation here; its sender knows.
  if (error.op_context == nullptr) return 0;
  Operation& operation = *Operation::Of(error.op_context);
  if (operation.kind != Operation::Kind::kReceive) return Finish(operation, &error, out) ? 1 : 0;
  --posted_receives_;
  receive_buffers_->Return(operation.buffer);
  PostReceives();
  return 0;
}

bool EfaDomain::Arrive(const fi_cq_data_entry& entry, Completion& out) {
  if ((entry.flags & FI_REMOTE_CQ_DATA) != 0) {
    out = {};
    out.kind = CompletionKind::kImmediate;
    out.immediate = static_cast<uint32_t>(entry.data);
    if (endpoint_->immediates_take_receives() && entry.op_context != nullptr) {
      --posted_receives_;
      receive_buffers_->Return(Operation::Of(entry.op_context)->buffer);
    }
    return true;
  }
  MessageBuffer& buffer = *Operation::Of(entry.op_context)->buffer;
  --posted_receives_;
  if (!OnMessage(buffer, entry.len)) receive_buffers_->Return(&buffer);
  return false;
}

std::string EfaDomain::Words(const fi_cq_err_entry& error) const {
  const char* words = fi_cq_strerror(endpoint_->queue(), error.prov_errno, error.err_data, nullptr, 0);
  return fmt::format("{}; the provider says: {} ({})", endpoint_->library().Words(error.err),
                     words == nullptr ? "nothing" : words, error.prov_errno);
}

void EfaDomain::Release(Operation& operation) {
  Remote& remote = *operation.remote;
  const PeerId id = operation.peer;
  EfaPeer& peer = peers_[id];
  if (operation.region != nullptr) memory_.Release(*operation.region);
  if (operation.buffer != nullptr) send_buffers_->Return(operation.buffer);
  operations_.Return(&operation);
  --remote.operations;
  peer.refused = false;
  if (--peer.in_flight > 0 || !peer.quiesce) return;
  peer.quiesce = false;
  nic::WireMessage message;
  message.kind = nic::WireMessage::Kind::kQuiesced;
  message.attempt = uint64_t{id} + 1;
  Send(remote, message);
}

void EfaDomain::Suspect(Completion completion, std::string cause) {
  completion.code = ErrorCode::kAborted;
  EfaPeer& peer = peers_[completion.peer];
  peer.suspects.push_back({completion, std::move(cause), peer.pings + 1});
  peer.next_ping_ns = 0;  // one for all that fail together
}

bool EfaDomain::Finish(Operation& operation, const fi_cq_err_entry* error, Completion& out) {
  if (operation.kind == Operation::Kind::kControl) {
    --operation.remote->controls;
    if (error != nullptr) ++operation.remote->errors;
    send_buffers_->Return(operation.buffer);
    return false;
  }
  if (error == nullptr && operation.immediate_follows) {
    operation.immediate_follows = false;
    peers_[operation.peer].refused = false;
    immediates_.push_back(&operation);
    return false;
  }
  out = {};
  out.kind = operation.kind == Operation::Kind::kWrite ? CompletionKind::kWrite : CompletionKind::kSend;
  out.peer = operation.peer;
  out.context = operation.context;
  out.length = operation.length;
  const bool reported = operation.reported;
  Release(operation);
  if (reported || (error != nullptr && !Fail(*error, out))) return false;
  --outstanding_;
  return true;
}

bool EfaDomain::Fail(const fi_cq_err_entry& error, Completion& out) {
  const EfaPeer& peer = peers_[out.peer];
  const char* what = out.kind == CompletionKind::kWrite ? "write" : "message";
  std::string cause = fmt::format("{} of {} bytes to peer {}: {}", what, out.length, out.peer, Words(error));
  if (MayBeDeath(error.err) && peer.state == PeerState::kReady) {
    Suspect(out, std::move(cause));
    return false;
  }
  out.code = peer.code == ErrorCode::kOk ? CodeOf(error, endpoint_->is_efa()) : peer.code;
  if (peer.code != ErrorCode::kOk) cause = fmt::format("{} ({})", peer.cause, cause);
  last_error_ = std::move(cause);
  return true;
}

void EfaDomain::AdvanceLoopback() {
  const nic::LoopbackWrite* write = loopback_.Advance();
  if (write == nullptr) return;
  Completion completion;
  completion.peer = write->peer;
  if (write->immediate.has_value()) {
    completion.kind = CompletionKind::kImmediate;
    completion.immediate = *write->immediate;
    Push(completion);
  }
  completion.kind = CompletionKind::kWrite;
  completion.immediate = 0;
  completion.context = write->context;
  completion.length = write->length;
  Push(completion);
  loopback_.Drop();
}

}  // namespace jax_fabric::efa
