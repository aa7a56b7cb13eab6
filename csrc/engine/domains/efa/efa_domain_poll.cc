// EfaDomain: what the completion queues say.
#include <algorithm>
#include <array>
#include <utility>

#include "csrc/engine/domains/efa/efa_domain_impl.h"

namespace jax_fabric::efa {
namespace {

constexpr size_t kBatch = 32;
constexpr uint32_t kPollsPerHousekeeping = 16;
constexpr uint32_t kPollsPerIdleSendQueue = 8;  // control messages are there when no write and no message is

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
  size_t count = TakeReports(completions);
  if (broken_.empty()) {
    // Either queue moves everything on, and takes the provider's locks for it, which those who write to here wait for.
    if (operations_.in_use() > 0 || polls_ % kPollsPerIdleSendQueue == 0) {
      count += ReadSendQueue(completions.subspan(count));
    }
    if (!immediates_.empty()) PostImmediates();
    count += ReadReceiveQueue(completions.subspan(count));
  }
  AdvanceLoopback();
  if (waiting_outboxes_ > 0) FlushOutboxes();
  if (++polls_ % kPollsPerHousekeeping == 0) Housekeep();
  return count + TakeReports(completions.subspan(count));
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

size_t EfaDomain::ReadSendQueue(std::span<Completion> out) {
  if (out.empty()) return 0;
  std::array<fi_cq_data_entry, kBatch> entries;
  const auto read = fi_cq_read(endpoint_->send_queue(), entries.data(), std::min(kBatch, out.size()));
  size_t count = 0;
  for (int64_t i = 0; i < read; ++i) {
    count += Finish(*Operation::Of(entries[static_cast<size_t>(i)].op_context), nullptr, out[count]) ? 1 : 0;
  }
  if (read != -FI_EAVAIL) return count;
  std::array<std::byte, 256> data;
  fi_cq_err_entry error = {};
  error.err_data = data.data();
  error.err_data_size = data.size();
  if (fi_cq_readerr(endpoint_->send_queue(), &error, 0) != 1 || error.op_context == nullptr) return count;
  count += Finish(*Operation::Of(error.op_context), &error, out[count]) ? 1 : 0;
  return count;
}

std::string EfaDomain::Words(fid_cq* queue, const fi_cq_err_entry& error) const {
  const char* words = fi_cq_strerror(queue, error.prov_errno, error.err_data, nullptr, 0);
  return fmt::format("{}; the provider says: {} ({})", endpoint_->library().Words(error.err),
                     words == nullptr ? "nothing" : words, error.prov_errno);
}

void EfaDomain::Release(Operation& operation) {
  Remote& remote = *operation.remote;
  const PeerId id = operation.peer;
  if (operation.region != nullptr) memory_.Release(*operation.region);
  if (operation.buffer != nullptr) send_buffers_->Return(operation.buffer);
  operations_.Return(&operation);
  --remote.operations;
  EfaPeer& peer = peers_[id];
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
  const EfaPeer& peer = peers_[out.peer];
  if (reported) return false;
  if (error != nullptr) {
    const char* what = out.kind == CompletionKind::kWrite ? "write" : "message";
    std::string cause = fmt::format("{} of {} bytes to peer {}: {}", what, out.length, out.peer,
                                    Words(endpoint_->send_queue(), *error));
    if (MayBeDeath(error->err) && peer.state == PeerState::kReady) {
      Suspect(out, std::move(cause));
      return false;
    }
    out.code = peer.code == ErrorCode::kOk ? CodeOf(*error, endpoint_->is_efa()) : peer.code;
    if (peer.code != ErrorCode::kOk) cause = fmt::format("{} ({})", peer.cause, cause);
    last_error_ = std::move(cause);
  }
  --outstanding_;
  return true;
}

size_t EfaDomain::ReadReceiveQueue(std::span<Completion> out) {
  if (out.empty()) return 0;
  std::array<fi_cq_data_entry, kBatch> entries;
  const auto read = fi_cq_read(endpoint_->receive_queue(), entries.data(), std::min(kBatch, out.size()));
  size_t count = 0;
  for (int64_t i = 0; i < read; ++i) {
    const fi_cq_data_entry& entry = entries[static_cast<size_t>(i)];
    if ((entry.flags & FI_REMOTE_CQ_DATA) != 0) {
      out[count] = {};
      out[count].kind = CompletionKind::kImmediate;
      out[count++].immediate = static_cast<uint32_t>(entry.data);
      if (!endpoint_->immediates_take_receives() || entry.op_context == nullptr) continue;
      --posted_receives_;
      receive_buffers_->Return(Operation::Of(entry.op_context)->buffer);
      continue;
    }
    MessageBuffer& buffer = *Operation::Of(entry.op_context)->buffer;
    --posted_receives_;
    if (!OnMessage(buffer, entry.len)) receive_buffers_->Return(&buffer);
  }
  if (read > 0) PostReceives();
  if (read != -FI_EAVAIL) return count;
  fi_cq_err_entry error = {};
  if (fi_cq_readerr(endpoint_->receive_queue(), &error, 0) != 1) return count;
  // Of a write that failed half way there is no operation here; its sender knows.
  if (error.op_context != nullptr) {
    --posted_receives_;
    receive_buffers_->Return(Operation::Of(error.op_context)->buffer);
    PostReceives();
  }
  return count;
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
