// EfaDomain: peers that come, live and go.
#include <algorithm>
#include <utility>

#include "csrc/base/clock.h"
#include "csrc/engine/domains/efa/efa_domain_impl.h"

namespace jax_fabric::efa {
namespace {

constexpr int64_t kHousekeepingNs = 1'000'000;
// Of one look at the clock: a domain that was not polled for long has not listened either.
constexpr int64_t kMaxElapsedNs = 100'000'000;
constexpr uint32_t kErrorsOfNobody = 5;  // in a row, with nothing heard: there is nobody at this address

}  // namespace

Result<PeerId> EfaDomain::AddPeer(ByteView bytes) {
  JF_ASSIGN_OR_RETURN(const EfaAddress address, EfaAddress::Open(bytes));
  if (!broken_.empty()) return MakeError(ErrorCode::kInternal, "{} is of no use any more: {}", name_, broken_);
  EfaPeer peer;
  peer.incarnation = address.incarnation;
  peer.credits = address.message_credits;
  const auto id = static_cast<PeerId>(peers_.size());
  if (address.incarnation == incarnation_) {
    for (const PeerId known : live_) {
      if (peers_[known].remote == nullptr) return known;
    }
    peer.state = PeerState::kReady;
  } else {
    JF_ASSIGN_OR_RETURN(peer.remote, EnsureRemote(address));
    if (peer.remote->peer != Completion::kUnknownPeer) return peer.remote->peer;
    peer.remote->peer = id;
    HandshakeDatagram hello;
    hello.from = incarnation_;
    hello.to = address.incarnation;
    hello.attempt = uint64_t{id} + 1;
    hello.payload = address_;
    const HandshakePolicy policy{.timeout_ns = options_.connect_timeout_us * 1000};
    peer.handshake.emplace(std::move(hello), policy, SteadyClock::Get().NowNs());
  }
  peers_.push_back(std::move(peer));
  live_.push_back(id);
  return id;
}

Result<Remote*> EfaDomain::EnsureRemote(const EfaAddress& address) {
  if (address.provider != options_.provider) {
    return MakeError(ErrorCode::kInvalidArgument, "the peer uses the provider '{}' and this domain '{}'",
                     address.provider, options_.provider);
  }
  if (const auto known = remotes_.find(address.incarnation); known != remotes_.end()) return known->second.get();
  auto remote = std::make_unique<Remote>();
  remote->incarnation = address.incarnation;
  JF_ASSIGN_OR_RETURN(remote->address, endpoint_->Insert(address.name));
  Remote* result = remote.get();
  remotes_.emplace(address.incarnation, std::move(remote));
  PostReceives();
  return result;
}

PeerState EfaDomain::peer_state(PeerId peer) const {
  return peer < peers_.size() ? peers_[peer].state : PeerState::kRemoved;
}

void EfaDomain::RemovePeer(PeerId id) {
  if (id >= peers_.size() || peers_[id].state == PeerState::kRemoved || peers_[id].removing) return;
  EfaPeer& peer = peers_[id];
  EndOperations(id, ErrorCode::kCancelled, fmt::format("peer {} was removed", id));
  std::erase(live_, id);
  Remote* remote = peer.remote;
  if (remote == nullptr || !remote->inbound || remote->gone) {
    if (remote != nullptr) remote->peer = Completion::kUnknownPeer;
    peer.state = PeerState::kRemoved;
    return;
  }
  remote->peer = Completion::kUnknownPeer;
  remote->inbound = false;
  answerer_.Forget(remote->incarnation);
  peer.state = PeerState::kFailed;
  peer.cause = "it was removed";
  peer.removing = true;
  removals_.push_back({id, remote, remote->inbound_attempt, 0});
  KeepPeers(SteadyClock::Get().NowNs());
}

void EfaDomain::FinishRemoval(const Removal& removal) {
  if (removal.peer == Completion::kUnknownPeer) return;  // this domain is leaving
  peers_[removal.peer].removing = false;
  peers_[removal.peer].state = PeerState::kRemoved;
}

void EfaDomain::FailPeer(PeerId id, ErrorCode code, const std::string& cause) {
  EfaPeer& peer = peers_[id];
  if (peer.state != PeerState::kConnecting && peer.state != PeerState::kReady) return;
  peer.state = PeerState::kFailed;
  peer.cause = cause;
  std::erase(live_, id);
  Completion fault;
  fault.kind = CompletionKind::kPeerFault;
  fault.code = code;
  fault.peer = id;
  Push(fault, cause);
  EndOperations(id, code, cause);
}

void EfaDomain::Break(const std::string& cause) {
  broken_ = cause;
  for (const auto& [incarnation, remote] : remotes_) {
    remote->gone = true;
    remote->inbound = false;
    remote->errors = 0;
    if (!remote->outbox.empty()) --waiting_outboxes_;
    remote->outbox.clear();
  }
  while (!live_.empty()) FailPeer(live_.back(), ErrorCode::kInternal, cause);
  endpoint_->Shut();  // nothing of anybody lands, or reads, any more
  for (PeerId id = 0; id < peers_.size(); ++id) {
    if (peers_[id].in_flight > 0) AbandonOperations(id);
  }
  for (Operation& operation : operations_.all()) {
    if (operation.kind != Operation::Kind::kFree) Release(operation);
  }
  immediates_.clear();
  for (const Removal& removal : removals_) FinishRemoval(removal);
  removals_.clear();
}

void EfaDomain::EndOperations(PeerId id, ErrorCode code, const std::string& cause) {
  EfaPeer& peer = peers_[id];
  for (EfaPeer::Suspect& suspect : peer.suspects) {
    suspect.completion.code = code;
    Push(suspect.completion, fmt::format("{} ({})", cause, suspect.cause));
  }
  peer.suspects.clear();
  peer.code = code;
  peer.cause = cause;
  if (peer.remote != nullptr) {
    if (peer.in_flight > 0 && std::find(draining_.begin(), draining_.end(), id) == draining_.end()) {
      draining_.push_back(id);
    }
    return;
  }
  for (; !loopback_.empty(); loopback_.Drop()) {
    Completion completion;
    completion.code = code;
    completion.peer = id;
    completion.context = loopback_.front().context;
    Push(completion, cause);
  }
}

void EfaDomain::AbandonOperations(PeerId id) {
  for (Operation& operation : operations_.all()) {
    if (operation.kind == Operation::Kind::kFree || operation.peer != id || operation.reported) continue;
    operation.reported = true;  // its memory stays held until the provider ends it
    Completion completion;
    completion.kind = operation.kind == Operation::Kind::kWrite ? CompletionKind::kWrite : CompletionKind::kSend;
    completion.code = peers_[id].code;
    completion.peer = id;
    completion.context = operation.context;
    completion.length = operation.length;
    Push(completion, peers_[id].cause);
  }
}

void EfaDomain::KeepDraining(int64_t elapsed_ns) {
  std::erase_if(draining_, [&](PeerId id) {
    EfaPeer& peer = peers_[id];
    peer.draining_ns += elapsed_ns;
    if (peer.in_flight > 0 && peer.draining_ns > options_.peer_timeout_us * 1000) AbandonOperations(id);
    return peer.in_flight == 0 || peer.draining_ns > options_.peer_timeout_us * 1000;
  });
}

void EfaDomain::SettleSuspects(EfaPeer& peer, uint64_t answered) {
  const auto is_answered = [&](const EfaPeer::Suspect& suspect) { return suspect.ping <= answered; };
  for (EfaPeer::Suspect& suspect : peer.suspects) {
    if (is_answered(suspect)) Push(suspect.completion, std::move(suspect.cause));
  }
  std::erase_if(peer.suspects, is_answered);
}

void EfaDomain::Housekeep() {
  const int64_t now_ns = SteadyClock::Get().NowNs();
  const int64_t elapsed_ns = now_ns - housekept_ns_;
  if (elapsed_ns < kHousekeepingNs) return;
  housekept_ns_ = now_ns;
  if (const std::string error = endpoint_->TakeError(); !error.empty() && broken_.empty()) Break(error);
  KeepPeers(now_ns);
  KeepDraining(std::min(elapsed_ns, kMaxElapsedNs));
  KeepRemotes(std::min(elapsed_ns, kMaxElapsedNs));
}

void EfaDomain::KeepPeers(int64_t now_ns) {
  const int64_t interval_ns = options_.heartbeat_interval_us * 1000;
  for (size_t i = 0; i < live_.size(); ++i) {
    const PeerId id = live_[i];
    EfaPeer& peer = peers_[id];
    if (peer.remote == nullptr) continue;
    if (peer.state == PeerState::kConnecting) {
      draws_ = draws_ * 6364136223846793005ull + 1442695040888963407ull;
      const double draw = static_cast<double>(draws_ >> 40) / static_cast<double>(1 << 24);
      if (const auto hello = peer.handshake->Poll(now_ns, draw)) SendHandshake(*peer.remote, *hello);
      if (peer.handshake->state() == PeerState::kFailed) {
        FailPeer(id, ErrorCode::kUnavailable, peer.handshake->error().message);
      }
    } else if (now_ns >= peer.next_ping_ns) {
      Ping(peer);
      peer.next_ping_ns = now_ns + interval_ns;
    }
  }
  for (Removal& removal : removals_) {
    if (now_ns < removal.next_ns) continue;
    removal.next_ns = now_ns + interval_ns;
    nic::WireMessage message;
    message.kind = nic::WireMessage::Kind::kGoodbye;
    message.attempt = removal.attempt;
    Send(*removal.remote, message);
  }
}

void EfaDomain::KeepRemotes(int64_t elapsed_ns) {
  for (auto it = remotes_.begin(); it != remotes_.end();) {
    Remote& remote = *it->second;
    remote.silence_ns += elapsed_ns;
    const bool connecting =
        remote.peer != Completion::kUnknownPeer && peers_[remote.peer].state == PeerState::kConnecting;
    const bool silent = !connecting && remote.silence_ns > options_.peer_timeout_us * 1000;
    const bool nobody =
        remote.errors >= kErrorsOfNobody && remote.silence_ns > 4 * options_.heartbeat_interval_us * 1000;
    if (silent || nobody) {
      const std::string cause =
          silent ? fmt::format("no sign of life for {} ms (peer_timeout_us)", remote.silence_ns / 1'000'000)
                 : "there is nobody at its address";
      remote.gone = true;
      remote.inbound = false;
      if (remote.peer != Completion::kUnknownPeer) FailPeer(remote.peer, ErrorCode::kUnavailable, cause);
      std::erase_if(removals_, [&](const Removal& removal) {
        if (removal.remote == &remote) FinishRemoval(removal);
        return removal.remote == &remote;
      });
    }
    const bool removing = std::any_of(removals_.begin(), removals_.end(),
                                      [&](const Removal& removal) { return removal.remote == &remote; });
    const bool used = remote.peer != Completion::kUnknownPeer || remote.inbound || removing || remote.held > 0 ||
                      remote.controls > 0 || remote.operations > 0 || (!remote.outbox.empty() && !remote.gone);
    if (used) {
      ++it;
      continue;
    }
    if (!remote.outbox.empty()) --waiting_outboxes_;
    endpoint_->Remove(remote.address, remote.left);
    it = remotes_.erase(it);
  }
}

}  // namespace jax_fabric::efa
