// How simulated domains connect: hellos and answers are datagrams that get lost, doubled, late and out of order.
#include <algorithm>
#include <utility>

#include "csrc/engine/domains/simulated/simulated_domain.h"
#include "csrc/engine/domains/simulated/simulated_network.h"

namespace jax_fabric::simulated {

void SimulatedNetwork::StartHandshake(uint32_t domain, PeerId peer_id) {
  SimulatedDomain& from = *Find(domain);
  SimulatedDomain::Peer& peer = from.peers_[peer_id];
  HandshakeDatagram hello;
  hello.from = from.incarnation_;
  hello.to = peer.incarnation;
  hello.attempt = peer_id + 1;
  // An answer takes a round trip; saying hello again before that could have come says nothing.
  const int64_t round_trip_ns = 2 * (from.options_.nic.handshake_ns + from.options_.nic.jitter_ns);
  const int64_t pause_ns = std::max({int64_t{1}, from.faults().retransmit_ns, round_trip_ns});
  const HandshakePolicy policy{.first_pause_ns = pause_ns,
                               .longest_pause_ns = 16 * pause_ns,
                               .timeout_ns = 8 * pause_ns * std::max(1, from.faults().retries)};
  peer.handshake.emplace(std::move(hello), policy, clock_.NowNs());
  Event event;
  event.at_ns = clock_.NowNs();
  event.kind = Event::Kind::kHandshake;
  event.place = domain;
  event.flight = peer_id;
  Schedule(event);
}

void SimulatedNetwork::OnHandshake(const Event& event) {
  SimulatedDomain* from = Find(event.place);
  const auto peer_id = static_cast<PeerId>(event.flight);
  if (from == nullptr || from->peers_[peer_id].state != PeerState::kConnecting) return;
  SimulatedDomain::Peer& peer = from->peers_[peer_id];
  if (from->faults().never_ready.contains(peer_id)) return;
  // As a machine answers for a process that is not there any more.
  if (Find(peer.domain) == nullptr) return from->LosePeer(peer_id, ErrorCode::kUnavailable, "nobody at this address");
  const double draw = std::uniform_real_distribution<>(0, 1)(random_);
  if (const auto hello = peer.handshake->Poll(clock_.NowNs(), draw)) SendDatagram(event.place, peer.domain, *hello);
  if (peer.handshake->state() == PeerState::kFailed) {
    return from->LosePeer(peer_id, ErrorCode::kUnavailable, peer.handshake->error().message);
  }
  Event again = event;
  again.at_ns = peer.handshake->next_ns();
  Schedule(again);
}

void SimulatedNetwork::SendDatagram(uint32_t source, uint32_t target, const HandshakeDatagram& datagram) {
  const SimulatedDomain& from = *Find(source);
  const SimulatedFaults& faults = from.options_.faults;
  if (cut_links_.contains(std::minmax(source, target)) || Chance(faults.handshake_loss_probability)) return;
  for (int copies = Chance(faults.handshake_double_probability) ? 2 : 1; copies > 0; --copies) {
    Event event;
    event.at_ns = clock_.NowNs() + from.options_.nic.handshake_ns + UpTo(from.options_.nic.jitter_ns);
    event.kind = Event::Kind::kDatagram;
    event.flight = next_datagram_++;
    datagrams_[event.flight] = {source, target, datagram.Serialize()};
    Schedule(event);
  }
}

void SimulatedNetwork::OnDatagram(const Event& event) {
  const Datagram datagram = std::move(datagrams_.extract(event.flight).mapped());
  SimulatedDomain* to = Find(datagram.target);
  const auto parsed = HandshakeDatagram::Parse(datagram.bytes);
  if (to == nullptr || !parsed.has_value()) return;
  if (parsed->kind != HandshakeDatagram::Kind::kHello) return OnAnswer(*to, *parsed);
  if (const auto reply = to->answerer_->OnHello(*parsed)) SendDatagram(datagram.target, datagram.source, *reply);
}

void SimulatedNetwork::OnAnswer(SimulatedDomain& caller, const HandshakeDatagram& datagram) {
  const auto peer_id = static_cast<PeerId>(datagram.attempt - 1);
  if (datagram.attempt == 0 || datagram.attempt > caller.peers_.size()) return;
  SimulatedDomain::Peer& peer = caller.peers_[peer_id];
  if (peer.state != PeerState::kConnecting) return;
  peer.handshake->OnDatagram(datagram);
  if (peer.handshake->state() == PeerState::kFailed) {
    return caller.LosePeer(peer_id, ErrorCode::kUnavailable, peer.handshake->error().message);
  }
  if (peer.handshake->state() == PeerState::kReady) peer.state = PeerState::kReady;
}

}  // namespace jax_fabric::simulated
