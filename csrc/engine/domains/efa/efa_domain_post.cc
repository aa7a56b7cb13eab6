// EfaDomain: what is posted.
#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/engine/domains/efa/efa_domain_impl.h"

namespace jax_fabric::efa {
namespace {

// Software providers report success for a wrong key without FI_DELIVERY_COMPLETE.
constexpr uint64_t kWriteFlags = FI_COMPLETION | FI_DELIVERY_COMPLETE;

}  // namespace

PostResult EfaDomain::Reject(std::string why) {
  last_error_ = std::move(why);
  return PostResult::kRejected;
}

PostResult EfaDomain::RejectPeer(const char* what, PeerId peer) {
  if (peer >= peers_.size()) return Reject(fmt::format("{} to peer {}: unknown, add it first", what, peer));
  const EfaPeer& to = peers_[peer];
  if (to.state == PeerState::kConnecting) return PostResult::kAgain;
  return Reject(fmt::format("{} to peer {}: it is {}", what, peer,
                            to.removing || to.state == PeerState::kRemoved ? "removed" : "lost: " + to.cause));
}

PostResult EfaDomain::PostWrite(const WriteRequest& request) {
  if (const PostResult result = CheckPeer("write", request.peer); result != PostResult::kPosted) return result;
  if (HasNoRoom(peers_[request.peer])) return PostResult::kAgain;
  if (request.length > limits_.max_write_bytes) {
    return Reject(fmt::format("write of {} bytes: at most {} go at once", request.length, limits_.max_write_bytes));
  }
  if (request.remote_address + request.length < request.remote_address) {
    return Reject(
        fmt::format("write of {} bytes to {:#x}: beyond the last address", request.length, request.remote_address));
  }
  if (peers_[request.peer].remote == nullptr) return PostToSelf(request);
  uint64_t provider_key = 0;
  if (!nic::OpenRemoteKey(request.remote_key, peers_[request.peer].incarnation, provider_key)) {
    return Reject(fmt::format("write to peer {}: the remote key {:#x} is none that it gives for writes", request.peer,
                              request.remote_key));
  }
  return PostOne(request, provider_key, false);
}

PostResult EfaDomain::PostPages(const PagesRequest& request, uint32_t& posted) {
  posted = 0;
  if (const PostResult result = CheckPeer("write", request.peer); result != PostResult::kPosted) return result;
  EfaPeer& peer = peers_[request.peer];
  if (HasNoRoom(peer)) return PostResult::kAgain;
  WriteRequest page;
  page.peer = request.peer;
  page.context = request.context;
  page.source = request.source + request.source_offsets[0];
  page.local_key = request.local_key;
  page.length = request.length;
  page.remote_address = request.remote_address + request.target_offsets[0];
  page.remote_key = request.remote_key;
  page.immediate = request.immediate;
  uint64_t provider_key = 0;
  const bool alone = request.count == 1 || peer.remote == nullptr;
  if (alone || page.length > limits_.max_write_bytes ||
      !nic::OpenRemoteKey(page.remote_key, peer.incarnation, provider_key)) {
    const PostResult result = PostWrite(page);  // and says what is wrong
    posted = result == PostResult::kPosted ? 1 : 0;
    return result;
  }
  // EFA's provider may keep what comes with FI_MORE until one comes without: only as many as surely fit. To others it
  // says nothing, and they refuse writes in the middle of a batch all the time.
  const bool batches = endpoint_->is_efa();
  const uint32_t count = std::min(request.count, limits_.max_outstanding - outstanding_);
  for (uint64_t i = 0; i < count; ++i) {
    page.source = request.source + request.source_offsets[i * request.step];
    page.remote_address = request.remote_address + request.target_offsets[i * request.step];
    const bool fits = page.remote_address + page.length >= page.remote_address;
    const PostResult result = fits ? PostOne(page, provider_key, batches && i + 1 < count) : PostWrite(page);
    if (result == PostResult::kPosted) {
      ++posted;
      continue;
    }
    if (posted == 0) return result;
    if (batches) Ping(peer);  // without FI_MORE: what was kept goes
    return PostResult::kPosted;
  }
  return PostResult::kPosted;
}

PostResult EfaDomain::PostOne(const WriteRequest& request, uint64_t provider_key, bool more) {
  EfaPeer& peer = peers_[request.peer];
  const bool empty = request.length == 0;
  const void* source = empty ? scratch_.data() : request.source;
  const char* why = nullptr;
  nic::HeldRegion* region =
      memory_.Hold(empty ? scratch_region_.local_key : request.local_key, source, request.length, why);
  if (region == nullptr)
    return Reject(fmt::format("write of {} bytes from {}: {}", request.length, request.source, why));
  Operation* operation = operations_.Take(Operation::Kind::kWrite);
  if (operation == nullptr) {
    memory_.Release(*region);
    return PostResult::kAgain;
  }
  operation->peer = request.peer;
  operation->remote = peer.remote;
  operation->context = request.context;
  operation->length = request.length;
  operation->region = region;
  operation->remote_address = request.remote_address;
  operation->provider_key = provider_key;
  operation->immediate = request.immediate.value_or(0);
  operation->immediate_follows = splits_ && !empty && request.immediate.has_value();
  const bool with_immediate = request.immediate.has_value() && !operation->immediate_follows;
  const auto error = WriteMessage(*operation, source, request.length,
                                  (with_immediate ? FI_REMOTE_CQ_DATA : 0) | (more ? uint64_t{FI_MORE} : 0));
  if (error != 0) {
    memory_.Release(*region);
    operations_.Return(operation);
    return Refused(request, error);
  }
  ++outstanding_;
  ++peer.in_flight;
  ++peer.remote->operations;
  return PostResult::kPosted;
}

PostResult EfaDomain::Refused(const WriteRequest& request, int64_t error) {
  if (error != -FI_EAGAIN) {
    return Reject(fmt::format("write of {} bytes to peer {}: {}", request.length, request.peer,
                              endpoint_->library().Words(error)));
  }
  EfaPeer& peer = peers_[request.peer];
  peer.refused = true;
  peer.refused_poll = polls_;
  return PostResult::kAgain;
}

inline int64_t EfaDomain::WriteMessage(Operation& operation, const void* source, uint64_t length, uint64_t flags) {
  iovec local{const_cast<void*>(source), length};
  fi_rma_iov remote{operation.remote_address, length, operation.provider_key};
  fi_msg_rma message{&local,     &operation.region->registration.descriptor,
                     1,          operation.remote->address,
                     &remote,    1,
                     &operation, operation.immediate};
  // shm (libfabric 1.17) answers none of those without bytes, and then nothing else either.
  const uint64_t write_flags = length == 0 && endpoint_->is_shm() ? uint64_t{FI_COMPLETION} : kWriteFlags;
  return fi_writemsg(endpoint_->ep(), &message, write_flags | flags);
}

void EfaDomain::PostImmediates() {
  std::erase_if(immediates_, [this](Operation* operation) { return PostImmediate(*operation); });
}

bool EfaDomain::PostImmediate(Operation& operation) {
  const EfaPeer& peer = peers_[operation.peer];
  Completion failed;
  failed.peer = operation.peer;
  failed.context = operation.context;
  failed.length = operation.length;
  const bool reported = operation.reported;
  if (reported || peer.state != PeerState::kReady) {
    Release(operation);
    failed.code = peer.code;
    if (!reported) Push(failed, peer.cause);
    return true;
  }
  const auto error =
      WriteMessage(operation, reinterpret_cast<const void*>(operation.region->address), 0, FI_REMOTE_CQ_DATA);
  if (error == -FI_EAGAIN) return false;
  if (error != 0) {
    Release(operation);
    Suspect(failed, fmt::format("immediate of a write of {} bytes to peer {}: {}", failed.length, failed.peer,
                                endpoint_->library().Words(error)));
  }
  return true;
}

PostResult EfaDomain::PostToSelf(const WriteRequest& request) {
  if (const char* why = loopback_.Post(request, incarnation_); why != nullptr) {
    return Reject(fmt::format("write of {} bytes to this domain itself: {}", request.length, why));
  }
  ++outstanding_;
  return PostResult::kPosted;
}

PostResult EfaDomain::PostSend(const SendRequest& request) {
  if (const PostResult result = CheckPeer("message", request.peer); result != PostResult::kPosted) return result;
  if (request.length > limits_.max_message_bytes) {
    return Reject(fmt::format("message of {} bytes: at most {}", request.length, limits_.max_message_bytes));
  }
  EfaPeer& peer = peers_[request.peer];
  if (peer.remote == nullptr) return SendToSelf(request);
  if (peer.sent - peer.taken >= peer.credits) return PostResult::kAgain;
  const char* why = nullptr;
  nic::HeldRegion* region = nullptr;
  if (request.length > 0) {
    region = memory_.Hold(request.local_key, request.source, request.length, why);
    if (region != nullptr && region->kind != MemoryKind::kHost) why = "messages lie in host memory";
    if (why != nullptr) {
      if (region != nullptr) memory_.Release(*region);
      return Reject(fmt::format("message of {} bytes from {}: {}", request.length, request.source, why));
    }
  }
  auto taken = send_buffers_->Take();
  if (!taken.has_value()) {
    if (region != nullptr) memory_.Release(*region);
    return Reject(taken.error().message);
  }
  MessageBuffer& buffer = **taken;
  nic::WireMessage message;
  message.kind = nic::WireMessage::Kind::kUser;
  message.from = incarnation_;
  message.to = peer.incarnation;
  message.attempt = uint64_t{request.peer} + 1;
  message.payload = {static_cast<const std::byte*>(request.source), request.length};
  const size_t bytes = message.Write(buffer.bytes, nullptr);
  if (region != nullptr) memory_.Release(*region);  // it is copied
  Operation* operation = operations_.Take(Operation::Kind::kSend);
  if (operation == nullptr) {
    send_buffers_->Return(&buffer);
    return PostResult::kAgain;
  }
  operation->peer = request.peer;
  operation->remote = peer.remote;
  operation->context = request.context;
  operation->length = request.length;
  operation->buffer = &buffer;
  const auto error =
      fi_send(endpoint_->ep(), buffer.bytes.data(), bytes, buffer.descriptor, peer.remote->address, operation);
  if (error != 0) {
    send_buffers_->Return(&buffer);
    operations_.Return(operation);
    if (error == -FI_EAGAIN) return PostResult::kAgain;
    return Reject(fmt::format("message to peer {}: {}", request.peer, endpoint_->library().Words(error)));
  }
  ++outstanding_;
  ++peer.sent;
  ++peer.in_flight;
  ++peer.remote->operations;
  return PostResult::kPosted;
}

PostResult EfaDomain::SendToSelf(const SendRequest& request) {
  if (own_held_ >= options_.message_credits) return PostResult::kAgain;
  const char* why = nullptr;
  if (request.length > 0) {
    nic::HeldRegion* region = memory_.Hold(request.local_key, request.source, request.length, why);
    if (region == nullptr) return Reject(fmt::format("message of {} bytes: {}", request.length, why));
    memory_.Release(*region);
  }
  auto taken = receive_buffers_->Take();
  if (!taken.has_value()) return Reject(taken.error().message);
  if (request.length > 0) std::memcpy((*taken)->bytes.data(), request.source, request.length);
  held_.push_back({*taken, nullptr, 0, ByteView((*taken)->bytes).first(request.length)});
  ++own_held_;
  ++outstanding_;
  Completion sent;
  sent.kind = CompletionKind::kSend;
  sent.peer = request.peer;
  sent.context = request.context;
  sent.length = request.length;
  Push(sent);
  DeliverHeld();
  return PostResult::kPosted;
}

PostResult EfaDomain::PostReceive(const ReceiveRequest& request) {
  if (receives_.size() >= limits_.max_receives) return PostResult::kAgain;
  const char* why = nullptr;
  nic::HeldRegion* region = memory_.Hold(request.local_key, request.target, request.length, why);
  if (region != nullptr && region->kind != MemoryKind::kHost) why = "messages lie in host memory";
  if (region != nullptr) memory_.Release(*region);  // the CPU copies, whatever the provider knows of it
  if (why != nullptr) return Reject(fmt::format("receive of {} bytes at {}: {}", request.length, request.target, why));
  receives_.push_back(request);
  DeliverHeld();
  return PostResult::kPosted;
}

void EfaDomain::DeliverHeld() {
  while (!held_.empty() && !receives_.empty()) {
    const HeldMessage message = held_.front();
    held_.pop_front();
    const ReceiveRequest receive = receives_.front();
    receives_.pop_front();
    Deliver(message, receive);
  }
}

void EfaDomain::Deliver(const HeldMessage& message, const ReceiveRequest& receive) {
  Completion completion;
  completion.kind = CompletionKind::kReceive;
  completion.context = receive.context;
  completion.length = message.payload.size();
  std::string cause;
  if (message.payload.size() > receive.length) {
    completion.code = ErrorCode::kOutOfRange;
    cause = fmt::format("a message of {} bytes came to a receive of {}", message.payload.size(), receive.length);
  } else if (!message.payload.empty()) {
    std::memcpy(receive.target, message.payload.data(), message.payload.size());
  }
  if (Remote* remote = message.remote; remote == nullptr) {
    --own_held_;
    for (const PeerId peer : live_) {
      if (peers_[peer].remote == nullptr) completion.peer = peer;
    }
  } else {
    completion.peer = remote->peer;
    --remote->held;
    if (remote->inbound && remote->inbound_attempt == message.attempt) {
      ++remote->taken;
      if (remote->taken - remote->taken_reported >= std::max(1u, options_.message_credits / 4)) {
        remote->taken_reported = remote->taken;
        nic::WireMessage credit;
        credit.kind = nic::WireMessage::Kind::kCredit;
        credit.attempt = message.attempt;
        credit.taken = remote->taken;
        Send(*remote, credit);
      }
    }
  }
  receive_buffers_->Return(message.buffer);
  Push(completion, std::move(cause));
}

}  // namespace jax_fabric::efa
