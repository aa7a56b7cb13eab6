// ConnectXDomain: what is posted.
#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "csrc/engine/domains/connectx/connectx_domain_impl.h"

namespace jax_fabric::connectx {
namespace {

constexpr uint32_t kChain = 4;  // a doorbell for each so many

}  // namespace

PostResult ConnectXDomain::Reject(std::string why) {
  last_error_ = std::move(why);
  return PostResult::kRejected;
}

PostResult ConnectXDomain::CheckPeer(const char* what, PeerId peer) {
  if (peer >= peers_.size()) return Reject(fmt::format("{} to peer {}: unknown, add it first", what, peer));
  const ConnectXPeer& to = peers_[peer];
  if (to.state == PeerState::kConnecting) return PostResult::kAgain;
  if (to.state != PeerState::kReady) {
    return Reject(fmt::format("{} to peer {}: it is {}", what, peer,
                              to.removing || to.state == PeerState::kRemoved ? "removed" : "lost: " + to.cause));
  }
  // One that a refused write has ended is made again.
  if (to.remote != nullptr && (!to.connected() || to.broken_ns != 0)) return PostResult::kAgain;
  return outstanding_ >= limits_.max_outstanding ? PostResult::kAgain : PostResult::kPosted;
}

PostResult ConnectXDomain::CheckWrite(PeerId peer, uint64_t length, uint64_t remote_key, uint64_t& provider_key) {
  if (const PostResult result = CheckPeer("write", peer); result != PostResult::kPosted) return result;
  if (length > limits_.max_write_bytes) {
    return Reject(fmt::format("write of {} bytes: at most {} go at once", length, limits_.max_write_bytes));
  }
  if (peers_[peer].remote != nullptr && !nic::OpenRemoteKey(remote_key, peers_[peer].incarnation, provider_key)) {
    return Reject(
        fmt::format("write to peer {}: the remote key {:#x} is none that it gives for writes", peer, remote_key));
  }
  return PostResult::kPosted;
}

PostResult ConnectXDomain::PostWrite(const WriteRequest& request) {
  constexpr uint64_t kHere = 0;
  PagesRequest page;
  page.peer = request.peer;
  page.context = request.context;
  page.source = static_cast<const std::byte*>(request.source);
  page.local_key = request.local_key;
  page.length = request.length;
  page.remote_address = request.remote_address;
  page.remote_key = request.remote_key;
  page.source_offsets = page.target_offsets = &kHere;
  page.count = 1;
  page.immediate = request.immediate;
  uint32_t posted = 0;
  return PostPages(page, posted);
}

PostResult ConnectXDomain::PostPages(const PagesRequest& request, uint32_t& posted) {
  posted = 0;
  uint64_t provider_key = 0;
  const PostResult check = CheckWrite(request.peer, request.length, request.remote_key, provider_key);
  if (check != PostResult::kPosted) return check;
  if (peers_[request.peer].remote == nullptr) {
    WriteRequest write;
    write.peer = request.peer;
    write.context = request.context;
    write.source = request.length == 0 ? nullptr : request.source + request.source_offsets[0];
    write.local_key = request.local_key;
    write.length = request.length;
    write.remote_address = request.remote_address + request.target_offsets[0];
    write.remote_key = request.remote_key;
    write.immediate = request.immediate;
    const PostResult result = PostToSelf(write);
    posted = result == PostResult::kPosted ? 1 : 0;
    return result;
  }
  const Lane& lane = peers_[request.peer].connection->writes();
  while (posted < request.count) {
    const uint32_t room =
        std::min({kChain, request.count - posted, lane.room(), limits_.max_outstanding - outstanding_});
    if (room == 0) return posted > 0 ? PostResult::kPosted : PostResult::kAgain;
    uint32_t chained = 0;
    const PostResult result = PostChain(request, provider_key, posted, room, chained);
    posted += chained;
    if (result != PostResult::kPosted) return posted > 0 ? PostResult::kPosted : result;
  }
  return PostResult::kPosted;
}

PostResult ConnectXDomain::PostChain(const PagesRequest& request, uint64_t provider_key, uint32_t first, uint32_t count,
                                     uint32_t& posted) {
  ConnectXPeer& peer = peers_[request.peer];
  Lane& lane = peer.connection->writes();
  std::array<ibv_send_wr, kChain> chain;
  std::array<ibv_sge, kChain> elements;
  std::array<nic::HeldRegion*, kChain> held{};
  uint32_t size = 0;
  const bool empty = request.length == 0;
  for (const char* why = nullptr; size < count; ++size) {
    const uint64_t at = (first + size) * request.step;
    const std::byte* source = empty ? nullptr : request.source + request.source_offsets[at];
    const uint64_t target = request.remote_address + request.target_offsets[at];
    if (target + request.length < target) {
      why = "the target is beyond the last address";
    } else if (!empty) {
      held[size] = memory_.Hold(request.local_key, source, request.length, why);
    }
    if (why != nullptr) {
      if (size > 0) break;  // those in front go; this one is the first of the next call
      return Reject(fmt::format("write of {} bytes from {} to {:#x} of peer {}: {}", request.length,
                                static_cast<const void*>(source), target, request.peer, why));
    }
    ibv_send_wr& work = chain[size] = {};
    if (!empty) {
      elements[size] = {reinterpret_cast<uint64_t>(source), static_cast<uint32_t>(request.length),
                        held[size]->registration.local_key};
      work.sg_list = &elements[size];
      work.num_sge = 1;
      if (request.length <= lane.pair().inline_bytes() && held[size]->kind == MemoryKind::kHost) {
        work.send_flags = IBV_SEND_INLINE;
      }
    }
    work.wr_id = lane.NextId(size);
    work.opcode = request.immediate.has_value() ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    work.imm_data = htonl(request.immediate.value_or(0));
    work.wr.rdma.remote_addr = target;
    work.wr.rdma.rkey = static_cast<uint32_t>(provider_key);
    if (size > 0) chain[size - 1].next = &work;
  }
  chain[size - 1].send_flags |= IBV_SEND_SIGNALED;  // it speaks for those in front of it
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(lane.pair().get(), chain.data(), &bad);
  posted = error == 0 ? size : static_cast<uint32_t>(bad - chain.data());
  for (uint32_t i = 0; i < size; ++i) {
    if (i >= posted) {
      if (held[i] != nullptr) memory_.Release(*held[i]);
      continue;
    }
    lane.Push({.chained = i > 0, .context = request.context, .length = request.length, .region = held[i]});
    ++outstanding_;
  }
  if (error == 0) return PostResult::kPosted;
  if (posted == 0 && error == ENOMEM) return PostResult::kAgain;
  std::string why = fmt::format("write of {} bytes to peer {}: {} refuses it: {}", request.length, request.peer, name(),
                                ErrnoWords(error));
  // Of a part of a chain nothing would tell when it is done: it ends with its connection.
  lane.Break(ErrorCode::kInternal, why);
  peer.broken_ns = 1;
  broken_.push_back(request.peer);
  return Reject(std::move(why));
}

PostResult ConnectXDomain::PostToSelf(const WriteRequest& request) {
  if (const char* why = loopback_.Post(request, incarnation_); why != nullptr) {
    return Reject(fmt::format("write of {} bytes to this domain itself: {}", request.length, why));
  }
  ++outstanding_;
  return PostResult::kPosted;
}

bool ConnectXDomain::HoldSource(const SendRequest& request, nic::HeldRegion*& region) {
  region = nullptr;
  if (request.length == 0) return true;
  const char* why = nullptr;
  region = memory_.Hold(request.local_key, request.source, request.length, why);
  if (region != nullptr && region->kind == MemoryKind::kHost) return true;
  if (region != nullptr) {
    why = "messages lie in host memory";
    memory_.Release(*std::exchange(region, nullptr));
  }
  Reject(fmt::format("message of {} bytes from {}: {}", request.length, request.source, why));
  return false;
}

PostResult ConnectXDomain::PostSend(const SendRequest& request) {
  if (const PostResult result = CheckPeer("message", request.peer); result != PostResult::kPosted) return result;
  ConnectXPeer& peer = peers_[request.peer];
  const uint64_t most = peer.remote == nullptr
                            ? limits_.max_message_bytes
                            : std::min<uint64_t>(limits_.max_message_bytes, peer.remote->address.message_bytes);
  if (request.length > most) return Reject(fmt::format("message of {} bytes: at most {}", request.length, most));
  if (peer.remote == nullptr) return SendToSelf(request);
  Lane& lane = peer.connection->messages();
  if (peer.sent - peer.taken >= peer.credits || lane.room() == 0) return PostResult::kAgain;
  nic::HeldRegion* region = nullptr;
  if (!HoldSource(request, region)) return PostResult::kRejected;
  const auto buffer = send_buffers_->Take();
  if (buffer.has_value() && request.length > 0) {
    std::memcpy(send_buffers_->bytes(*buffer).data(), request.source, request.length);
  }
  if (region != nullptr) memory_.Release(*region);  // it is copied
  if (!buffer.has_value()) return Reject(buffer.error().message);
  ibv_sge element = send_buffers_->Element(*buffer, request.length);
  ibv_send_wr work = {};
  work.wr_id = lane.NextId(0);
  work.sg_list = &element;
  work.num_sge = request.length == 0 ? 0 : 1;
  work.opcode = IBV_WR_SEND;
  work.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(lane.pair().get(), &work, &bad); error != 0) {
    send_buffers_->Return(*buffer);
    if (error == ENOMEM) return PostResult::kAgain;
    return Reject(fmt::format("message to peer {}: {} refuses it: {}", request.peer, name(), ErrnoWords(error)));
  }
  lane.Push({.kind = CompletionKind::kSend, .context = request.context, .length = request.length, .buffer = *buffer});
  ++outstanding_;
  ++peer.sent;
  return PostResult::kPosted;
}

PostResult ConnectXDomain::SendToSelf(const SendRequest& request) {
  if (own_held_ >= options_.message_credits) return PostResult::kAgain;
  nic::HeldRegion* region = nullptr;
  if (!HoldSource(request, region)) return PostResult::kRejected;
  if (region != nullptr) memory_.Release(*region);
  const auto buffer = receive_buffers_->Take();
  if (!buffer.has_value()) return Reject(buffer.error().message);
  if (request.length > 0) std::memcpy(receive_buffers_->bytes(*buffer).data(), request.source, request.length);
  held_.push_back({*buffer, nullptr, 0, request.length});
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

PostResult ConnectXDomain::PostReceive(const ReceiveRequest& request) {
  if (receives_.size() >= limits_.max_receives) return PostResult::kAgain;
  const char* why = nullptr;
  nic::HeldRegion* region = memory_.Hold(request.local_key, request.target, request.length, why);
  if (region != nullptr && region->kind != MemoryKind::kHost) why = "messages lie in host memory";
  if (region != nullptr) memory_.Release(*region);  // the CPU copies, whatever the device knows of it
  if (why != nullptr) return Reject(fmt::format("receive of {} bytes at {}: {}", request.length, request.target, why));
  receives_.push_back(request);
  DeliverHeld();
  return PostResult::kPosted;
}

void ConnectXDomain::DeliverHeld() {
  while (!held_.empty() && !receives_.empty()) {
    const HeldMessage message = held_.front();
    held_.pop_front();
    const ReceiveRequest receive = receives_.front();
    receives_.pop_front();
    Deliver(message, receive);
  }
}

void ConnectXDomain::Deliver(const HeldMessage& message, const ReceiveRequest& receive) {
  Completion completion;
  completion.kind = CompletionKind::kReceive;
  completion.context = receive.context;
  completion.length = message.length;
  if (message.remote != nullptr) {
    completion.peer = message.remote->peer;
    CountTaken(message);
  } else {
    --own_held_;
    for (const PeerId peer : live_) {
      if (peers_[peer].remote == nullptr) completion.peer = peer;
    }
  }
  if (message.length > receive.length) {
    completion.code = ErrorCode::kOutOfRange;
    PushError(completion, fmt::format("a message of {} bytes came to a receive of {}", message.length, receive.length));
  } else {
    if (message.length > 0) {
      std::memcpy(receive.target, receive_buffers_->bytes(message.buffer).data(), message.length);
    }
    Push(completion);
  }
  receive_buffers_->Return(message.buffer);
  PostMessageReceives();
}

void ConnectXDomain::CountTaken(const HeldMessage& message) {
  Remote& remote = *message.remote;
  --remote.held;
  if (remote.inbound == nullptr || remote.inbound->attempt != message.attempt) return;
  ++remote.taken;
  if (remote.taken - remote.taken_reported < std::max(1u, options_.message_credits / 4)) return;
  remote.taken_reported = remote.taken;
  nic::WireMessage credit;
  credit.kind = nic::WireMessage::Kind::kCredit;
  credit.attempt = message.attempt;
  credit.taken = remote.taken;
  Send(remote, credit);
}

}  // namespace jax_fabric::connectx
