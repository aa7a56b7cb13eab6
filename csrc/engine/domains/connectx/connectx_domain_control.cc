// ConnectXDomain: datagrams between domains: handshakes, heartbeats, goodbyes.
#include <algorithm>
#include <array>
#include <utility>

#include "csrc/engine/domains/connectx/connectx_domain_impl.h"

namespace jax_fabric::connectx {

using Kind = nic::WireMessage::Kind;

void ConnectXDomain::Send(Remote& remote, nic::WireMessage message) {
  message.from = incarnation_;
  message.to = remote.incarnation;
  std::array<std::byte, DatagramEndpoint::kMaxBytes> bytes;
  if (nic::WireMessage::kOverhead + message.payload.size() > bytes.size()) return;
  const size_t size = message.Write(bytes, options_.key.get());
  datagrams_->Send(remote.route, ByteView(bytes).first(size));
}

void ConnectXDomain::OnDatagram(ByteView bytes) {
  const auto message = nic::WireMessage::Read(bytes, options_.key.get());
  if (!message.has_value() || message->kind == Kind::kUser) return;
  if (message->kind == Kind::kHandshake) return OnHandshake(*message);
  const auto found = remotes_.find(message->from);
  if (message->to != incarnation_ || found == remotes_.end()) return;
  found->second->silence_ns = 0;
  OnControl(*found->second, *message);
}

void ConnectXDomain::SendHandshake(Remote& remote, const HandshakeDatagram& datagram) {
  const Bytes bytes = datagram.Serialize();
  nic::WireMessage message;
  message.kind = Kind::kHandshake;
  message.payload = bytes;
  Send(remote, message);
}

ConnectXPeer* ConnectXDomain::PeerOf(const Remote& remote, uint64_t attempt) {
  if (remote.peer == Completion::kUnknownPeer) return nullptr;
  ConnectXPeer& peer = peers_[remote.peer];
  return peer.connection != nullptr && peer.connection->attempt == attempt ? &peer : nullptr;
}

void ConnectXDomain::OnHandshake(const nic::WireMessage& message) {
  const auto datagram = HandshakeDatagram::Parse(message.payload);
  if (!datagram.has_value()) return;
  if (datagram->kind == HandshakeDatagram::Kind::kHello) return OnHello(*datagram);
  // A refusal comes from whatever incarnation is at that address now: the attempt says whom it is for.
  for (size_t i = 0; i < live_.size(); ++i) {
    const PeerId id = live_[i];
    ConnectXPeer& peer = peers_[id];
    if (!peer.handshake.has_value() || peer.connection->attempt != datagram->attempt) continue;
    peer.remote->silence_ns = 0;
    peer.handshake->OnDatagram(*datagram);
    if (peer.handshake->state() == PeerState::kFailed) {
      return FailPeer(id, ErrorCode::kUnavailable, peer.handshake->error().message);
    }
    if (peer.handshake->state() != PeerState::kReady) return;
    if (const Status finished = FinishConnection(peer, peer.handshake->answer()); !finished.has_value()) {
      FailPeer(id, finished.error().code, finished.error().message);
    }
    return;
  }
}

void ConnectXDomain::OnHello(const HandshakeDatagram& hello) {
  const auto end = ConnectionEnd::Open(hello.payload);
  if (!end.has_value()) return;
  const auto address = ConnectXAddress::Open(end->caller);
  if (!address.has_value() || address->incarnation != hello.from || hello.from == incarnation_) return;
  const auto remote = EnsureRemote(*address);
  if (!remote.has_value()) return;
  (*remote)->silence_ns = 0;
  if (const auto reply = answerer_.OnHello(hello)) SendHandshake(**remote, *reply);
}

void ConnectXDomain::OnControl(Remote& remote, const nic::WireMessage& message) {
  const bool current = remote.inbound != nullptr && remote.inbound->attempt == message.attempt;
  ConnectXPeer* peer = PeerOf(remote, message.attempt);
  switch (message.kind) {
    case Kind::kPing: {
      nic::WireMessage answer;
      answer.kind = current ? Kind::kPong : Kind::kGoodbye;
      answer.attempt = message.attempt;
      answer.value = message.value;
      if (current) answer.taken = remote.taken_reported = remote.taken;
      return Send(remote, answer);
    }
    case Kind::kPong:
    case Kind::kCredit:
      if (peer != nullptr) peer->taken = std::max(peer->taken, message.taken);  // late ones say less
      return;
    case Kind::kGoodbye:
      if (peer != nullptr) FailPeer(remote.peer, ErrorCode::kUnavailable, "it has removed this domain");
      return;
    case Kind::kQuiesced:
      if (current) CloseInbound(remote, Completion::kUnknownPeer);
      return;
    case Kind::kLeaving:
      if (remote.peer != Completion::kUnknownPeer) {
        FailPeer(remote.peer, ErrorCode::kUnavailable, "it has closed its domain");
      }
      return CloseInbound(remote, Completion::kUnknownPeer);
    case Kind::kHandshake:
    case Kind::kUser:
      return;
  }
}

}  // namespace jax_fabric::connectx
