// EfaDomain: messages, its own and the user's.
#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/engine/domains/efa/efa_domain_impl.h"

namespace jax_fabric::efa {
namespace {

constexpr uint32_t kControlsPerRemote = 8;  // one that takes nothing in must not take all buffers
constexpr size_t kOutboxMessages = 4;
constexpr uint32_t kReceivesAtLeast = 64;
constexpr uint32_t kReceivesOfImmediates = 512;  // where they take any; writers wait when there are none left

}  // namespace

void EfaDomain::Send(Remote& remote, nic::WireMessage message) {
  if (!broken_.empty()) return;
  message.from = incarnation_;
  message.to = remote.incarnation;
  Bytes bytes(nic::WireMessage::kOverhead + message.payload.size());
  bytes.resize(message.Write(bytes, options_.key.get()));
  if (remote.outbox.empty() && TrySend(remote, bytes)) return;
  if (remote.outbox.size() >= kOutboxMessages) return;  // as if it got lost
  if (remote.outbox.empty()) ++waiting_outboxes_;
  remote.outbox.push_back(std::move(bytes));
}

bool EfaDomain::TrySend(Remote& remote, ByteView bytes) {
  if (remote.controls >= kControlsPerRemote) return false;
  auto taken = send_buffers_->Take();
  if (!taken.has_value()) return false;
  MessageBuffer& buffer = **taken;
  std::memcpy(buffer.bytes.data(), bytes.data(), bytes.size());
  buffer.operation.kind = Operation::Kind::kControl;
  buffer.operation.remote = &remote;
  const auto error =
      fi_send(endpoint_->ep(), buffer.bytes.data(), bytes.size(), buffer.descriptor, remote.address, &buffer.operation);
  if (error == 0) {
    ++remote.controls;
    return true;
  }
  send_buffers_->Return(&buffer);
  if (error == -FI_EAGAIN) return false;
  ++remote.errors;
  return true;  // lost
}

void EfaDomain::FlushOutboxes() {
  for (const auto& [incarnation, remote] : remotes_) {
    if (remote->outbox.empty()) continue;
    while (!remote->outbox.empty() && TrySend(*remote, remote->outbox.front())) remote->outbox.pop_front();
    if (remote->outbox.empty()) --waiting_outboxes_;
  }
}

void EfaDomain::PostReceives() {
  const auto depth = static_cast<uint32_t>(endpoint_->info().rx_attr->size);
  const auto wanted = kReceivesAtLeast +
                      (options_.message_credits + kControlsPerRemote) * static_cast<uint32_t>(remotes_.size()) +
                      (endpoint_->immediates_take_receives() ? kReceivesOfImmediates : 0);
  while (posted_receives_ < std::min(depth, wanted)) {
    auto taken = receive_buffers_->Take();
    if (!taken.has_value()) return;
    MessageBuffer& buffer = **taken;
    buffer.operation.kind = Operation::Kind::kReceive;
    if (fi_recv(endpoint_->ep(), buffer.bytes.data(), buffer.bytes.size(), buffer.descriptor, FI_ADDR_UNSPEC,
                &buffer.operation) != 0) {
      receive_buffers_->Return(&buffer);
      return;  // at the next message
    }
    ++posted_receives_;
  }
}

bool EfaDomain::OnMessage(MessageBuffer& buffer, size_t bytes) {
  const auto message =
      nic::WireMessage::Read(ByteView(buffer.bytes).first(std::min(bytes, buffer.bytes.size())), options_.key.get());
  if (!message.has_value()) return false;
  if (message->kind == nic::WireMessage::Kind::kHandshake) {
    OnHandshake(*message);
    return false;
  }
  const auto found = remotes_.find(message->from);
  if (message->to != incarnation_ || found == remotes_.end()) return false;
  Remote& remote = *found->second;
  remote.silence_ns = 0;
  remote.errors = 0;
  if (message->kind != nic::WireMessage::Kind::kUser) {
    OnControl(remote, *message);
    return false;
  }
  if (!remote.inbound || remote.inbound_attempt != message->attempt) return false;  // of a connection that is over
  ++remote.held;
  held_.push_back({&buffer, &remote, message->attempt, message->payload});
  DeliverHeld();
  return true;
}

void EfaDomain::SendHandshake(Remote& remote, const HandshakeDatagram& datagram) {
  const Bytes bytes = datagram.Serialize();
  nic::WireMessage message;
  message.kind = nic::WireMessage::Kind::kHandshake;
  message.payload = bytes;
  Send(remote, message);
}

void EfaDomain::OnHandshake(const nic::WireMessage& message) {
  const auto datagram = HandshakeDatagram::Parse(message.payload);
  if (!datagram.has_value()) return;
  if (datagram->kind == HandshakeDatagram::Kind::kHello) return OnHello(*datagram);
  if (datagram->attempt == 0 || datagram->attempt > peers_.size()) return;
  const auto id = static_cast<PeerId>(datagram->attempt - 1);
  EfaPeer& peer = peers_[id];
  if (peer.state != PeerState::kConnecting || peer.remote == nullptr) return;
  peer.handshake->OnDatagram(*datagram);
  if (peer.handshake->state() == PeerState::kFailed) {
    FailPeer(id, ErrorCode::kUnavailable, peer.handshake->error().message);
  } else if (peer.handshake->state() == PeerState::kReady) {
    peer.state = PeerState::kReady;
    peer.remote->silence_ns = 0;
    peer.remote->errors = 0;
    peer.remote->gone = false;
  }
}

void EfaDomain::OnHello(const HandshakeDatagram& hello) {
  const auto address = EfaAddress::Open(hello.payload);
  if (!address.has_value() || address->incarnation != hello.from || hello.from == incarnation_) return;
  const auto remote = EnsureRemote(*address);
  if (!remote.has_value()) return;
  (*remote)->silence_ns = 0;
  (*remote)->errors = 0;
  (*remote)->gone = false;
  if (const auto reply = answerer_.OnHello(hello)) SendHandshake(**remote, *reply);
}

void EfaDomain::Ping(EfaPeer& peer) {
  nic::WireMessage message;
  message.kind = nic::WireMessage::Kind::kPing;
  message.attempt = static_cast<uint64_t>(&peer - peers_.data()) + 1;
  message.value = ++peer.pings;
  Send(*peer.remote, message);
}

void EfaDomain::OnControl(Remote& remote, const nic::WireMessage& message) {
  using Kind = nic::WireMessage::Kind;
  const bool known = message.attempt > 0 && message.attempt <= peers_.size() &&
                     peers_[message.attempt - 1].incarnation == remote.incarnation;
  switch (message.kind) {
    case Kind::kPing: {
      nic::WireMessage pong;
      pong.kind = Kind::kPong;
      pong.attempt = message.attempt;
      pong.value = message.value;
      if (remote.inbound && remote.inbound_attempt == message.attempt) {
        pong.taken = remote.taken_reported = remote.taken;
      }
      return Send(remote, pong);
    }
    case Kind::kPong:
    case Kind::kCredit:
      if (!known) return;
      // Late ones say less.
      peers_[message.attempt - 1].taken = std::max(peers_[message.attempt - 1].taken, message.taken);
      return SettleSuspects(peers_[message.attempt - 1], message.value);
    case Kind::kGoodbye:
      return OnGoodbye(remote, message.attempt);
    case Kind::kQuiesced:
      std::erase_if(removals_, [&](const Removal& removal) {
        const bool over = removal.remote == &remote && removal.attempt == message.attempt;
        if (over) FinishRemoval(removal);
        return over;
      });
      return;
    case Kind::kLeaving:
      return OnLeaving(remote, message.value == 1);
    case Kind::kHandshake:
    case Kind::kUser:
      return;
  }
}

void EfaDomain::OnGoodbye(Remote& remote, uint64_t attempt) {
  nic::WireMessage answer;
  answer.kind = nic::WireMessage::Kind::kQuiesced;
  answer.attempt = attempt;
  if (attempt > 0 && attempt <= peers_.size() && peers_[attempt - 1].incarnation == remote.incarnation) {
    EfaPeer& peer = peers_[attempt - 1];
    FailPeer(static_cast<PeerId>(attempt - 1), ErrorCode::kUnavailable, "it has removed this domain");
    if (peer.in_flight > 0) {
      peer.quiesce = true;
      answer.kind = nic::WireMessage::Kind::kPong;  // still here, and not done
    }
  }
  Send(remote, answer);
}

void EfaDomain::OnLeaving(Remote& remote, bool quiesced) {
  if (remote.peer != Completion::kUnknownPeer)
    FailPeer(remote.peer, ErrorCode::kUnavailable, "it has closed its domain");
  if (!quiesced) return;  // then only silence says that nothing comes any more
  remote.gone = true;
  remote.left = true;
  remote.inbound = false;
  std::erase_if(removals_, [&](const Removal& removal) {
    if (removal.remote == &remote) FinishRemoval(removal);
    return removal.remote == &remote;
  });
}

}  // namespace jax_fabric::efa
