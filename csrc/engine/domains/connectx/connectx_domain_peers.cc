// ConnectXDomain: peers that come, live and go.
#include <algorithm>
#include <utility>

#include "csrc/base/clock.h"
#include "csrc/engine/domains/connectx/connectx_domain_impl.h"

namespace jax_fabric::connectx {
namespace {

constexpr int64_t kHousekeepingNs = 1'000'000;
// Of one look at the clock: a domain that was not polled for long has not listened either.
constexpr int64_t kMaxElapsedNs = 100'000'000;
constexpr int64_t kCloseNs = 2'000'000'000;  // then the device is told to forget what it does not give back
constexpr uint32_t kInlineBytes = 64;
constexpr uint32_t kInboundDepth = 2;  // nothing but Close's marker is posted there

}  // namespace

Result<PeerId> ConnectXDomain::AddPeer(ByteView bytes) {
  JF_ASSIGN_OR_RETURN(const ConnectXAddress address, ConnectXAddress::Open(bytes));
  ConnectXPeer peer;
  peer.incarnation = address.incarnation;
  const auto id = static_cast<PeerId>(peers_.size());
  if (address.incarnation == incarnation_) {
    for (const PeerId known : live_) {
      if (peers_[known].remote == nullptr) return known;
    }
    peer.state = PeerState::kReady;
  } else {
    JF_ASSIGN_OR_RETURN(peer.remote, EnsureRemote(address));
    if (peer.remote->peer != Completion::kUnknownPeer) return peer.remote->peer;
  }
  Remote* remote = peer.remote;
  peers_.push_back(std::move(peer));
  if (remote != nullptr) {
    if (Status started = StartConnection(id, 0, options_.connect_timeout_us); !started.has_value()) {
      peers_.pop_back();
      return tl::unexpected<Error>(std::move(started.error()));
    }
    remote->peer = id;
  }
  live_.push_back(id);
  return id;
}

Result<Remote*> ConnectXDomain::EnsureRemote(const ConnectXAddress& address) {
  if (const auto known = remotes_.find(address.incarnation); known != remotes_.end()) return known->second.get();
  auto remote = std::make_unique<Remote>();
  remote->incarnation = address.incarnation;
  remote->address = address;
  JF_ASSIGN_OR_RETURN(remote->route, datagrams_->RouteTo(address));
  Remote* result = remote.get();
  remotes_.emplace(address.incarnation, std::move(remote));
  PostMessageReceives();
  return result;
}

Result<std::unique_ptr<Connection>> ConnectXDomain::MakeConnection(Remote& remote, uint32_t depth) {
  auto connection = std::make_unique<Connection>();
  connection->remote = &remote;
  for (size_t i = 0; i < ConnectionEnd::kQueuePairs; ++i) {
    ibv_srq* receives = i == ConnectionEnd::kWrites ? write_receives_.get() : message_receives_.get();
    const QueuePairShape shape{depth, depth == kInboundDepth ? 0 : kInlineBytes};
    JF_ASSIGN_OR_RETURN(QueuePair pair, QueuePair::Create(*device_, queue_->get(), receives, shape));
    connection->lanes[i] =
        std::make_unique<Lane>(*connection, static_cast<uint32_t>(lanes_.size() + i), std::move(pair), depth);
  }
  for (const auto& lane : connection->lanes) lanes_.push_back(lane.get());
  return connection;
}

Status ConnectXDomain::StartConnection(PeerId id, uint64_t renews, int64_t timeout_us) {
  ConnectXPeer& peer = peers_[id];
  JF_ASSIGN_OR_RETURN(peer.connection, MakeConnection(*peer.remote, limits_.max_outstanding + 1));
  peer.connection->attempt = ++attempts_;
  peer.connection->peer = id;
  ConnectionEnd end;
  end.renews = renews;
  end.caller = address_;
  for (size_t i = 0; i < end.queue_pairs.size(); ++i) end.queue_pairs[i] = peer.connection->lanes[i]->pair().address();
  HandshakeDatagram hello;
  hello.from = incarnation_;
  hello.to = peer.incarnation;
  hello.attempt = peer.connection->attempt;
  hello.payload = end.Seal();
  peer.handshake.emplace(std::move(hello), HandshakePolicy{.timeout_ns = timeout_us * 1000},
                         SteadyClock::Get().NowNs());
  return {};
}

Status ConnectXDomain::FinishConnection(ConnectXPeer& peer, ByteView answer) {
  JF_ASSIGN_OR_RETURN(const ConnectionEnd end, ConnectionEnd::Open(answer));
  for (size_t i = 0; i < end.queue_pairs.size(); ++i) {
    JF_RETURN_IF_ERROR(
        peer.connection->lanes[i]->pair().Connect(peer.remote->address.port, end.queue_pairs[i], options_));
  }
  peer.credits = peer.remote->address.message_credits;
  peer.sent = peer.taken = 0;
  peer.state = PeerState::kReady;
  peer.handshake.reset();
  return {};
}

Result<Bytes> ConnectXDomain::Accept(const HandshakeDatagram& hello) {
  JF_ASSIGN_OR_RETURN(const ConnectionEnd theirs, ConnectionEnd::Open(hello.payload));
  Remote& remote = *remotes_.at(hello.from);
  if (theirs.renews != 0 && (remote.inbound == nullptr || remote.inbound->attempt != theirs.renews)) {
    return MakeError(ErrorCode::kFailedPrecondition, "it has removed this domain");
  }
  JF_ASSIGN_OR_RETURN(auto connection, MakeConnection(remote, kInboundDepth));
  connection->attempt = hello.attempt;
  ConnectionEnd ours;
  for (size_t i = 0; i < ours.queue_pairs.size(); ++i) {
    QueuePair& pair = connection->lanes[i]->pair();
    ours.queue_pairs[i] = pair.address();
    const Status connected = pair.Connect(remote.address.port, theirs.queue_pairs[i], options_);
    if (connected.has_value()) continue;
    Close(std::move(connection), ErrorCode::kCancelled, "it was refused");
    return tl::unexpected<Error>(connected.error());
  }
  CloseInbound(remote, Completion::kUnknownPeer);
  connection->inbound_number = ours.queue_pairs[ConnectionEnd::kMessages].number;
  inbound_[connection->inbound_number] = connection.get();
  remote.inbound = std::move(connection);
  remote.taken = remote.taken_reported = 0;
  return ours.Seal();
}

PeerState ConnectXDomain::peer_state(PeerId peer) const {
  return peer < peers_.size() ? peers_[peer].state : PeerState::kRemoved;
}

void ConnectXDomain::RemovePeer(PeerId id) {
  if (id >= peers_.size() || peers_[id].state == PeerState::kRemoved || peers_[id].removing) return;
  ConnectXPeer& peer = peers_[id];
  std::erase(live_, id);
  peer.state = PeerState::kFailed;
  peer.cause = "it was removed";
  peer.removing = true;
  ++peer.closing;
  EndOperations(id, ErrorCode::kCancelled, fmt::format("peer {} was removed", id));
  if (Remote* remote = peer.remote; remote != nullptr) {
    remote->peer = Completion::kUnknownPeer;
    if (remote->inbound != nullptr) {
      nic::WireMessage message;
      message.kind = nic::WireMessage::Kind::kGoodbye;
      message.attempt = remote->inbound->attempt;
      answerer_.Forget(remote->incarnation);
      CloseInbound(*remote, id);
      Send(*remote, message);
    }
  }
  if (--peer.closing == 0) peer.state = PeerState::kRemoved;
}

void ConnectXDomain::FailPeer(PeerId id, ErrorCode code, std::string cause) {
  ConnectXPeer& peer = peers_[id];
  if (peer.state != PeerState::kConnecting && peer.state != PeerState::kReady) return;
  peer.state = PeerState::kFailed;
  peer.cause = cause;
  std::erase(live_, id);
  Completion fault;
  fault.kind = CompletionKind::kPeerFault;
  fault.code = code;
  fault.peer = id;
  PushError(fault, cause);
  EndOperations(id, code, cause);
}

void ConnectXDomain::EndOperations(PeerId id, ErrorCode code, const std::string& cause) {
  ConnectXPeer& peer = peers_[id];
  std::erase(broken_, id);
  peer.broken_ns = 0;
  peer.handshake.reset();
  if (peer.remote != nullptr) {
    if (peer.connection != nullptr) Close(std::move(peer.connection), code, cause);
    for (const auto& each : closing_) {
      if (each->peer != id) continue;
      each->renew = false;
      if (!peer.removing || each->removal != Completion::kUnknownPeer) continue;
      each->removal = id;
      ++peer.closing;
    }
    return;
  }
  for (; !loopback_.empty(); loopback_.Drop()) {
    Completion completion;
    completion.code = code;
    completion.peer = id;
    completion.context = loopback_.front().context;
    PushError(completion, cause);
  }
}

void ConnectXDomain::Close(std::unique_ptr<Connection> connection, ErrorCode code, const std::string& cause) {
  for (const auto& lane : connection->lanes) lane->Break(code, cause);
  if (markers_ + ConnectionEnd::kQueuePairs <= kMarkers) BeginClosing(*connection);
  closing_.push_back(std::move(connection));
}

void ConnectXDomain::BeginClosing(Connection& connection) {
  markers_ += ConnectionEnd::kQueuePairs;
  for (const auto& lane : connection.lanes) lane->Close();
  connection.close_by_ns = SteadyClock::Get().NowNs() + kCloseNs;
}

void ConnectXDomain::CloseInbound(Remote& remote, PeerId removal) {
  if (remote.inbound == nullptr) return;
  remote.inbound->removal = removal;
  if (removal != Completion::kUnknownPeer) ++peers_[removal].closing;
  Close(std::move(remote.inbound), ErrorCode::kCancelled, "it is over");
}

void ConnectXDomain::SweepClosing() {
  const int64_t now_ns = SteadyClock::Get().NowNs();
  for (size_t i = 0; i < closing_.size();) {
    Connection& oldest = *closing_[i];
    if (oldest.close_by_ns == 0 && markers_ + ConnectionEnd::kQueuePairs <= kMarkers) BeginClosing(oldest);
    if (!oldest.closed() && (oldest.close_by_ns == 0 || now_ns < oldest.close_by_ns)) {
      ++i;
      continue;
    }
    const std::unique_ptr<Connection> connection = std::move(closing_[i]);
    closing_.erase(closing_.begin() + static_cast<ptrdiff_t>(i));
    FinishClosing(*connection);
  }
}

void ConnectXDomain::FinishClosing(Connection& connection) {
  markers_ -= ConnectionEnd::kQueuePairs;
  if (const auto found = inbound_.find(connection.inbound_number);
      found != inbound_.end() && found->second == &connection) {
    inbound_.erase(found);
  }
  for (const auto& lane : connection.lanes) {
    lane->Destroy();
    Retire(*lane, lane->in_flight(), lane->code(), &lane->cause());
    lanes_[lane->index()] = nullptr;
  }
  if (connection.removal != Completion::kUnknownPeer && --peers_[connection.removal].closing == 0) {
    peers_[connection.removal].state = PeerState::kRemoved;
  }
  if (connection.peer == Completion::kUnknownPeer) return;
  if (!connection.renew) {
    nic::WireMessage message;
    message.kind = nic::WireMessage::Kind::kQuiesced;
    message.attempt = connection.attempt;
    return Send(*connection.remote, message);
  }
  const Status started = StartConnection(connection.peer, connection.attempt, options_.peer_timeout_us);
  if (!started.has_value()) FailPeer(connection.peer, started.error().code, started.error().message);
}

// What still runs may end; what waits meanwhile is posted when the connection is made again.
void ConnectXDomain::SweepBroken() {
  const int64_t now_ns = SteadyClock::Get().NowNs();
  std::erase_if(broken_, [&](PeerId id) {
    ConnectXPeer& peer = peers_[id];
    if (peer.broken_ns == 1) peer.broken_ns = now_ns;
    const auto runs = [](const auto& lane) { return !lane->broken() && lane->in_flight() > 0; };
    if (std::any_of(peer.connection->lanes.begin(), peer.connection->lanes.end(), runs) &&
        now_ns - peer.broken_ns < options_.peer_timeout_us * 1000) {
      return false;
    }
    peer.broken_ns = 0;
    peer.connection->renew = true;
    Close(std::move(peer.connection), ErrorCode::kAborted, "the connection is made anew");
    return true;
  });
}

void ConnectXDomain::Housekeep() {
  const int64_t now_ns = SteadyClock::Get().NowNs();
  const int64_t elapsed_ns = now_ns - housekept_ns_;
  if (elapsed_ns < kHousekeepingNs) return;
  housekept_ns_ = now_ns;
  KeepPeers(now_ns);
  KeepRemotes(std::min(elapsed_ns, kMaxElapsedNs));
}

void ConnectXDomain::KeepPeers(int64_t now_ns) {
  for (size_t i = 0; i < live_.size(); ++i) {
    const PeerId id = live_[i];
    ConnectXPeer& peer = peers_[id];
    if (peer.remote == nullptr) continue;
    if (peer.handshake.has_value()) {
      draws_ = draws_ * 6364136223846793005ull + 1442695040888963407ull;
      const double draw = static_cast<double>(draws_ >> 40) / static_cast<double>(1 << 24);
      if (const auto hello = peer.handshake->Poll(now_ns, draw)) SendHandshake(*peer.remote, *hello);
      if (peer.handshake->state() == PeerState::kFailed) {
        FailPeer(id, ErrorCode::kUnavailable, peer.handshake->error().message);
      }
    } else if (now_ns >= peer.next_ping_ns && peer.connection != nullptr) {
      nic::WireMessage ping;
      ping.kind = nic::WireMessage::Kind::kPing;
      ping.attempt = peer.connection->attempt;
      Send(*peer.remote, ping);
      peer.next_ping_ns = now_ns + options_.heartbeat_interval_us * 1000;
    }
  }
}

void ConnectXDomain::KeepRemotes(int64_t elapsed_ns) {
  for (auto it = remotes_.begin(); it != remotes_.end();) {
    Remote& remote = *it->second;
    remote.silence_ns += elapsed_ns;
    const bool known = remote.peer != Completion::kUnknownPeer;
    const bool connecting = known && peers_[remote.peer].state == PeerState::kConnecting;
    if (!connecting && remote.silence_ns > options_.peer_timeout_us * 1000) {
      if (known) {
        FailPeer(remote.peer, ErrorCode::kUnavailable,
                 fmt::format("no sign of life for {} ms (peer_timeout_us)", remote.silence_ns / 1'000'000));
      }
      CloseInbound(remote, Completion::kUnknownPeer);
    }
    const bool closing = std::any_of(closing_.begin(), closing_.end(),
                                     [&](const auto& connection) { return connection->remote == &remote; });
    const bool used = known || remote.inbound != nullptr || closing || remote.held > 0;
    it = used ? std::next(it) : remotes_.erase(it);
  }
}

}  // namespace jax_fabric::connectx
