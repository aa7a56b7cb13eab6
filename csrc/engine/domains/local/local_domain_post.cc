// Posting, and the progress of writes that take more than one slice.
#include <algorithm>
#include <utility>

#include "csrc/engine/domains/local/local_domain_impl.h"

namespace jax_fabric::local {
namespace {

// Of pages that one PostPages copies: much against what it costs besides, little against what others may wait.
constexpr uint64_t kPagesBytes = 128 * 1024;
constexpr uint64_t kMostPages = 256;
// Writes to one peer: twice what is on the way. More would only be looked at in vain.
constexpr uint32_t kMostBounced = 2 * kBounceSlots;

}  // namespace

PostResult LocalDomain::Reject(Error error) {
  last_error_ = std::move(error.message);
  return PostResult::kRejected;
}

PostResult LocalDomain::CheckPost(const char* operation, PeerId id, uint64_t local_key, const void* source,
                                  uint64_t length) {
  LocalPeer* peer = FindPeer(id);
  if (peer == nullptr) {
    return Reject({ErrorCode::kNotFound, fmt::format("{}: peer {} is unknown: call AddPeer first", operation, id)});
  }
  const PeerState state = peer->state();
  if (state == PeerState::kConnecting) return PostResult::kAgain;
  if (state != PeerState::kReady) {
    return Reject({ErrorCode::kUnavailable, fmt::format("{}: {} {}", operation, peer->label(),
                                                        state == PeerState::kFailed ? "is lost" : "was removed")});
  }
  if (peer->closed()) {
    FailPeer(*peer, ErrorCode::kUnavailable, "its domain was closed");
    return PostResult::kRejected;
  }
  if (outstanding_ == options_.max_outstanding) return PostResult::kAgain;
  if (length > 0 && !regions_.Contains(local_key, source, length)) {
    return Reject({ErrorCode::kInvalidArgument,
                   fmt::format("{} to {}: the source, {} bytes at {}, is not inside the region of local key {:#x}: "
                               "register it first",
                               operation, peer->label(), length, source, local_key)});
  }
  return PostResult::kPosted;
}

PostResult LocalDomain::PostWrite(const WriteRequest& request) {
  const PostResult check = CheckPost("write", request.peer, request.local_key, request.source, request.length);
  if (check != PostResult::kPosted) return check;
  if (request.length > limits_.max_write_bytes) {
    return Reject({ErrorCode::kInvalidArgument,
                   fmt::format("write of {} bytes: at most {} at once", request.length, limits_.max_write_bytes)});
  }
  LocalPeer& peer = *peers_[request.peer];
  if (request.immediate && !peer.lane().HasImmediateRoom()) {
    peer.starved_of_immediates = true;
    return PostResult::kAgain;
  }
  Error error;
  switch (peer.Enter(request.remote_key, request.remote_address, request.length, error)) {
    case LocalPeer::Entered::kRefused:
      if (error.code == ErrorCode::kUnavailable) FailPeer(peer, error.code, std::string(peer.WhyLost()));
      return Reject(std::move(error));
    case LocalPeer::Entered::kNotYet:
      return Defer(request);
    case LocalPeer::Entered::kYes:
      break;
  }
  if (request.length > options_.slice_bytes || peer.bounces()) {
    peer.Leave();
    return peer.bounces() && peer.bounced_writes == kMostBounced ? PostResult::kAgain : Defer(request);
  }
  const bool streaming = request.transfer_bytes >= options_.streaming_pages_bytes;
  const Status copied = peer.Copy(request.remote_address, request.source, request.length, streaming);
  peer.Leave();
  ++outstanding_;
  if (copied.has_value()) {
    if (request.immediate) peer.lane().PushImmediate(*request.immediate);
  } else {
    last_error_ = copied.error().message;
  }
  Complete(CompletionKind::kWrite, request.peer, request.context, request.length,
           copied.has_value() ? ErrorCode::kOk : copied.error().code);
  return PostResult::kPosted;
}

PostResult LocalDomain::CheckPages(const PagesRequest& request) {
  const std::byte* source = request.source + request.source_offsets[0];
  const PostResult check = CheckPost("paged write", request.peer, request.local_key, source, request.length);
  if (check != PostResult::kPosted) return check;
  LocalPeer& peer = *peers_[request.peer];
  if (!request.immediate || peer.lane().HasImmediateRoom()) return PostResult::kPosted;
  peer.starved_of_immediates = true;
  return PostResult::kAgain;
}

PostResult LocalDomain::PostPages(const PagesRequest& request, uint32_t& posted) {
  // One at a time where there is nothing to save, or one is more than a Post should copy.
  if (request.length == 0 || request.length > kPagesBytes / 2) return Domain::PostPages(request, posted);
  const PostResult check = CheckPages(request);
  if (check != PostResult::kPosted) return check;
  LocalPeer& peer = *peers_[request.peer];
  Error error;
  const auto entered =
      peer.Enter(request.remote_key, request.remote_address + request.target_offsets[0], request.length, error);
  if (entered == LocalPeer::Entered::kRefused) {
    if (error.code == ErrorCode::kUnavailable) FailPeer(peer, error.code, std::string(peer.WhyLost()));
    return Reject(std::move(error));
  }
  const bool at_once = entered == LocalPeer::Entered::kYes && !peer.bounces();
  if (!at_once) {
    if (entered == LocalPeer::Entered::kYes) peer.Leave();
    return Domain::PostPages(request, posted);
  }
  if (!regions_.Hold(request.local_key)) {
    peer.Leave();
    return Reject({ErrorCode::kInvalidArgument, "paged write: the source was deregistered while it was posted"});
  }
  const uint64_t most = std::min<uint64_t>(
      {request.count, kPagesBytes / request.length, kMostPages, options_.max_outstanding - outstanding_});
  const bool streaming = request.transfer_bytes >= options_.streaming_pages_bytes;
  uint32_t count = 0;
  const Status copied =
      peer.CopyPages(request, static_cast<uint32_t>(most), regions_.Held(request.local_key), streaming, count);
  regions_.Release(request.local_key);
  peer.Leave();
  outstanding_ += count;
  if (copied.has_value()) {
    if (request.immediate) peer.lane().PushImmediate(*request.immediate, static_cast<uint16_t>(count));
  } else {
    last_error_ = copied.error().message;
  }
  Complete(CompletionKind::kWrite, request.peer, request.context, request.length,
           copied.has_value() ? ErrorCode::kOk : copied.error().code, count);
  posted = count;
  return PostResult::kPosted;
}

PostResult LocalDomain::PostSend(const SendRequest& request) {
  const PostResult check = CheckPost("send", request.peer, request.local_key, request.source, request.length);
  if (check != PostResult::kPosted) return check;
  LocalPeer& peer = *peers_[request.peer];
  if (request.length > limits_.max_message_bytes || request.length > peer.max_message_bytes()) {
    return Reject({ErrorCode::kInvalidArgument,
                   fmt::format("send of {} bytes to {}: at most {} here and {} there", request.length, peer.label(),
                               limits_.max_message_bytes, peer.max_message_bytes())});
  }
  if (!peer.lane().HasMessageRoom(request.length)) {
    peer.starved_of_message = request.length;
    return PostResult::kAgain;
  }
  peer.lane().PushMessage(request.source, request.length);
  ++outstanding_;
  Complete(CompletionKind::kSend, request.peer, request.context, request.length, ErrorCode::kOk);
  return PostResult::kPosted;
}

PostResult LocalDomain::PostReceive(const ReceiveRequest& request) {
  if (receives_.full()) return PostResult::kAgain;
  if (request.length > 0 &&
      (!regions_.Contains(request.local_key, request.target, request.length) || !regions_.Hold(request.local_key))) {
    return Reject({ErrorCode::kInvalidArgument,
                   fmt::format("receive: the buffer, {} bytes at {}, is not inside the region of local key {:#x}: "
                               "register it first",
                               request.length, request.target, request.local_key)});
  }
  receives_.Push(request);
  return PostResult::kPosted;
}

void LocalDomain::Complete(CompletionKind kind, PeerId peer, uint64_t context, uint64_t length, ErrorCode code,
                           uint32_t count) {
  Completion completion;
  completion.kind = kind;
  completion.code = code;
  completion.peer = peer;
  completion.context = context;
  completion.length = length;
  completion.count = count;
  completions_.Push(completion);  // has room for everything outstanding
}

PostResult LocalDomain::Defer(const WriteRequest& request) {
  if (request.length > 0 && !regions_.Hold(request.local_key)) {
    return Reject({ErrorCode::kInvalidArgument, "write: the source was deregistered while the write was posted"});
  }
  ++outstanding_;
  LocalPeer& peer = *peers_[request.peer];
  const uint64_t run_bytes = peer.run.Extend(request.remote_address, request.length);
  const bool streaming =
      run_bytes >= options_.streaming_bytes || request.transfer_bytes >= options_.streaming_pages_bytes;
  if (peer.bounces()) ++peer.bounced_writes;
  deferred_.Push({.request = request, .streaming = streaming, .bounces = peer.bounces()});
  return PostResult::kPosted;
}

void LocalDomain::FinishWrite(const DeferredWrite& write, ErrorCode code) {
  if (write.bounces) --peers_[write.request.peer]->bounced_writes;
  if (write.request.length > 0) regions_.Release(write.request.local_key);
  Complete(CompletionKind::kWrite, write.request.peer, write.request.context, write.request.length, code);
}

LocalDomain::Advance LocalDomain::AdvanceWrite(DeferredWrite& write) {
  const WriteRequest& request = write.request;
  LocalPeer& peer = *peers_[request.peer];
  bool copied = false;
  if (write.done < request.length) {
    Error error;
    const Advance advance = AdvanceCopy(write, error);
    if (advance == Advance::kFinished) {
      last_error_ = std::move(error.message);
      FinishWrite(write, error.code);
    }
    if (advance != Advance::kCopied || write.done < request.length) return advance;
    copied = true;
  }
  if (request.immediate) {
    // The lane was not full when the write was posted, but may be now.
    if (!peer.lane().HasImmediateRoom()) return copied ? Advance::kCopied : Advance::kWaiting;
    peer.lane().PushImmediate(*request.immediate);
  }
  FinishWrite(write, ErrorCode::kOk);
  return Advance::kFinished;
}

LocalDomain::Advance LocalDomain::AdvanceCopy(DeferredWrite& write, Error& error) {
  const WriteRequest& request = write.request;
  LocalPeer& peer = *peers_[request.peer];
  if (write.bounce) {
    const Advance landed = TakeBounce(write, error);
    if (landed != Advance::kCopied || write.done == request.length) return landed;
  }
  const uint64_t at = request.remote_address + write.done;
  const uint64_t count = std::min(options_.slice_bytes, request.length - write.done);
  const auto entered = peer.Enter(request.remote_key, at, count, error);
  if (entered == LocalPeer::Entered::kNotYet) return Advance::kWaiting;
  if (entered == LocalPeer::Entered::kRefused) return Advance::kFinished;
  if (peer.bounces()) {
    peer.Leave();
    return PushBounce(write);
  }
  const Status status =
      peer.Copy(at, static_cast<const std::byte*>(request.source) + write.done, count, write.streaming);
  peer.Leave();
  if (!status.has_value()) {
    error = status.error();
    return Advance::kFinished;
  }
  write.done += count;
  return Advance::kCopied;
}

LocalDomain::Advance LocalDomain::PushBounce(DeferredWrite& write) {
  const WriteRequest& request = write.request;
  LaneWriter& lane = peers_[request.peer]->lane();
  write.bounce = lane.FreeBounce();
  if (!write.bounce) return Advance::kWaiting;
  write.bounce_bytes = std::min(kBounceBytes, request.length - write.done);
  lane.PushBounce(*write.bounce, request.remote_key, request.remote_address + write.done,
                  static_cast<const std::byte*>(request.source) + write.done, write.bounce_bytes);
  return Advance::kCopied;
}

LocalDomain::Advance LocalDomain::TakeBounce(DeferredWrite& write, Error& error) {
  LocalPeer& peer = *peers_[write.request.peer];
  const BounceState state = peer.lane().TakeBounce(*write.bounce);
  if (state == BounceState::kFull) return Advance::kWaiting;
  write.bounce.reset();
  if (state == BounceState::kLanded) {
    write.done += write.bounce_bytes;
    return Advance::kCopied;
  }
  error = {
      ErrorCode::kPermissionDenied,
      fmt::format("write of {} bytes to {:#x} of {}: remote key {:#x} was deregistered while the write was on the way "
                  "(deregister only after the last write), or the peer has removed this domain",
                  write.request.length, write.request.remote_address, peer.label(), write.request.remote_key)};
  return Advance::kFinished;
}

void LocalDomain::AdvanceDeferred() {
  // One slice of one write a call keeps Poll short; taking turns keeps the writes fair. Writes that only wait cost a
  // look each.
  for (size_t turns = std::min<size_t>(deferred_.size(), 16); turns > 0; --turns) {
    DeferredWrite write = deferred_.Pop();
    const Advance advance = AdvanceWrite(write);
    if (advance != Advance::kFinished) deferred_.Push(write);
    if (advance != Advance::kWaiting) return;
  }
}

void LocalDomain::AbortWrites(PeerId peer, ErrorCode code) {
  for (size_t turns = deferred_.size(); turns > 0; --turns) {
    const DeferredWrite write = deferred_.Pop();
    if (write.request.peer == peer) {
      FinishWrite(write, code);
    } else {
      deferred_.Push(write);
    }
  }
}

}  // namespace jax_fabric::local
