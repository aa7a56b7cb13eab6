#include "csrc/engine/grant_protocol.h"

#include <algorithm>
#include <utility>

#include "csrc/engine/domain_group.h"
#include "csrc/engine/grant_mutants.h"
#include "csrc/engine/group_driver.h"

namespace jax_fabric {
namespace {

// Of a message: what has not left by then is said again anyway.
constexpr int64_t kMessageTimeoutUs = 1'000'000;

// Seldom, so that it may allocate.
struct Call final : DriverRequest {
  explicit Call(std::function<void()> what) : run(std::move(what)) {}
  void Start(GroupDriver&) override {
    run();
    delete this;
  }
  const std::function<void()> run;
};

}  // namespace

GrantProtocol::GrantProtocol(DomainGroup& group, GroupDriver& driver, PeerTable& peers)
    : group_(group),
      driver_(driver),
      peers_(peers),
      owner_(*this),
      writer_([this](PeerHandle peer, const GrantMessage& message) { Say(peer, message); },
              [this](Operation& operation) {
                driver_.BeginCancel(operation, "its owner took the grant back, or it was given up");
              }) {}

void GrantProtocol::OnWorker(std::function<void()> run) { driver_.Submit(new Call(std::move(run))); }

int64_t GrantProtocol::NowNs() const { return driver_.clock().NowNs(); }

// --- any thread

WriteGrant GrantProtocol::Open(PeerHandle writer, uint32_t immediate) {
  const uint64_t seen = ImmediatesSeen(immediate);
  std::lock_guard lock(mutex_);
  const WriteGrant grant{next_id_++, first_open_.load(std::memory_order_relaxed), immediate};
  OnWorker([this, grant, writer, seen] { owner_.Open(grant.id, writer, grant.immediate, seen); });
  return grant;
}

void GrantProtocol::Close(uint64_t id) {
  OnWorker([this, id] {
    owner_.Close(id);
    first_open_.store(owner_.first_open(), std::memory_order_relaxed);
  });
}

void GrantProtocol::Revoke(uint64_t id, Deadline deadline, WorkerCallback callback) {
  OnWorker([this, id, deadline, callback] { owner_.Revoke(id, deadline, callback, NowNs()); });
}

void GrantProtocol::GiveUp(PeerHandle owner, const WriteGrant& grant) {
  OnWorker([this, owner, grant] { writer_.Stop(owner, grant.id, grant.first_open); });
}

// --- worker

bool GrantProtocol::Admit(Operation& operation) {
  return writer_.Admit(operation.peer_of_grant(), *operation.grant(), operation);
}

void GrantProtocol::Retire(Operation& operation) {
  writer_.Retire(operation.peer_of_grant(), operation.grant()->id, operation, operation.posted(),
                 operation.succeeded());
}

bool GrantProtocol::Step(int64_t now_ns) {
  if (!owner_.Step(now_ns)) return false;
  first_open_.store(owner_.first_open(), std::memory_order_relaxed);
  return true;
}

bool GrantProtocol::Take(const Peer* peer, ByteView bytes) {
  const std::optional<GrantMessage> message = GrantMessage::Parse(bytes);
  if (!message) return false;
  if (peer == nullptr) return true;  // said again, and then perhaps by somebody we know
  if (message->kind == GrantMessage::Kind::kRevoke) {
    writer_.Stop(peer->handle, message->grant, message->first_open);
  } else {
    owner_.OnStopped(peer->handle, *message, NowNs());
  }
  return true;
}

void GrantProtocol::Say(PeerHandle peer, const GrantMessage& message) {
  RequestOptions options;
  options.deadline = Deadline::After(driver_.clock(), kMessageTimeoutUs);
  options.wait_for_room = false;
  [[maybe_unused]] const auto sent = group_.Send(peer, message.Serialize(), std::move(options));
}

uint64_t GrantProtocol::ImmediatesSeen(uint32_t immediate) const { return driver_.imm_counter().seen(immediate); }

bool GrantProtocol::ShutOut(PeerHandle handle) {
  const Peer& peer = *peers_.Find(handle);
  const PeerState state = peer.state.load(std::memory_order_relaxed);  // this thread stores it
  if (state == PeerState::kFailed && Mutated(GrantMutant::kReleaseWithoutRemoving)) return true;
  // Lost over one NIC it may still write over the others.
  if (state == PeerState::kFailed) group_.RemovePeer(handle);
  if (state != PeerState::kRemoved) return false;
  return std::all_of(peer.lanes.begin(), peer.lanes.end(), [](const Lane& lane) {
    return lane.id == Completion::kUnknownPeer || lane.domain->peer_state(lane.id) == PeerState::kRemoved;
  });
}

void GrantProtocol::EndExpectation(uint32_t immediate) { driver_.imm_counter().Abandon(immediate); }

std::string GrantProtocol::PeerName(PeerHandle peer) const { return peers_.Find(peer)->label; }

}  // namespace jax_fabric
