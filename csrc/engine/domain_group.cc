#include "csrc/engine/domain_group.h"

#include <algorithm>
#include <utility>

#include "csrc/engine/descriptor.h"
#include "csrc/engine/grant_protocol.h"
#include "csrc/engine/group_driver.h"
#include "csrc/engine/message_pool.h"
#include "csrc/engine/peer_table.h"
#include "csrc/engine/piece_layout.h"
#include "csrc/engine/prepared_scatter.h"
#include "csrc/engine/registration_cache.h"
#include "csrc/engine/request_planner.h"
#include "csrc/engine/submission.h"
#include "csrc/engine/submission_pool.h"

namespace jax_fabric {
namespace {

constexpr uint64_t kDefaultMessageBytes = 8192;

}  // namespace

DomainGroup::DomainGroup(GroupOptions options, std::shared_ptr<const FabricKey> key, uint64_t incarnation,
                         const Clock& clock, Waker& waker, WaitHub& hub, Executor& callback_executor)
    : key_(std::move(key)), incarnation_(incarnation) {
  std::unique_ptr<MessageAuthenticator> authenticator;
  if (key_ != nullptr) authenticator = std::make_unique<MessageAuthenticator>(key_, incarnation_);
  messages_ = std::make_unique<MessagePool>(callback_executor, std::move(authenticator), options.send_slots,
                                            options.max_send_bytes == 0 ? kDefaultMessageBytes : options.max_send_bytes,
                                            options.domains[0]->limits().max_message_bytes);
  driver_ = std::make_unique<GroupDriver>(std::move(options.name), std::move(options.domains), clock, waker, hub);
  peers_ = std::make_unique<PeerTable>();
  grants_ = std::make_unique<GrantProtocol>(*this, *driver_, *peers_);
  driver_->SetGrants(grants_.get());
  messages_->SetFilter(grants_.get());
  registrations_ = std::make_unique<RegistrationCache>(driver_->domains());
  planner_ = std::make_unique<RequestPlanner>(*peers_, *registrations_, static_cast<uint32_t>(nic_count()));
  submissions_ = std::make_unique<SubmissionPool>(*driver_, callback_executor, options.max_requests);
}

DomainGroup::~DomainGroup() = default;

const std::string& DomainGroup::name() const { return driver_->name(); }
size_t DomainGroup::nic_count() const { return driver_->domains().size(); }
const Clock& DomainGroup::clock() const { return driver_->clock(); }

Status DomainGroup::CheckAccepting(const char* what) const {
  if (driver_->accepting()) return {};
  return MakeError(ErrorCode::kCancelled, "group '{}': {}: the engine is closed", name(), what);
}

// --- peers

Bytes DomainGroup::Address() const {
  PeerAddress address;
  address.name = name().substr(0, PeerAddress::kMaxNameBytes);
  address.kind = driver_->domains()[0]->kind();
  address.incarnation = incarnation_;
  address.max_write_bytes = GroupWriteLimit(driver_->domains());
  address.max_message_bytes = driver_->domains()[0]->limits().max_message_bytes;
  for (const auto& domain : driver_->domains()) {
    address.nics.emplace_back(domain->address().begin(), domain->address().end());
  }
  return address.Serialize(key_.get());
}

Result<PeerHandle> DomainGroup::AddPeer(ByteView bytes) {
  JF_RETURN_IF_ERROR(CheckAccepting("add peer"));
  JF_ASSIGN_OR_RETURN(PeerAddress address, PeerAddress::Parse(bytes));
  if (const Status authentic = address.Authenticate(bytes, key_.get()); !authentic.has_value()) {
    return MakeError(authentic.error().code, "group '{}': add peer '{}': {}", name(), address.name,
                     authentic.error().message);
  }
  const DomainKind kind = driver_->domains()[0]->kind();
  if (address.kind != kind) {
    return MakeError(ErrorCode::kFailedPrecondition,
                     "group '{}': add peer '{}': its domains are of kind {}, this group's of kind {}; give both the "
                     "same transport",
                     name(), address.name, static_cast<int>(address.kind), static_cast<int>(kind));
  }
  if (address.nics.size() != nic_count()) {
    return MakeError(ErrorCode::kFailedPrecondition,
                     "group '{}': add peer '{}': it has {} NICs for a device, this group {}; NIC i talks to NIC i, so "
                     "configure as many on both sides",
                     name(), address.name, address.nics.size(), nic_count());
  }
  JF_ASSIGN_OR_RETURN(const auto added, peers_->Add(bytes, std::move(address), GroupWriteLimit(driver_->domains())));
  const auto [peer, is_new] = added;
  if (is_new) driver_->Submit(&peer->connect);
  return peer->handle;
}

Status DomainGroup::WaitPeers(std::span<const PeerHandle> handles, Deadline deadline) {
  std::vector<Peer*> peers;
  for (const PeerHandle handle : handles) {
    JF_ASSIGN_OR_RETURN(Peer * peer, planner_->FindPeer(handle, "wait for peers"));
    peers.push_back(peer);
  }
  // Sequentially consistent: see WaitHub::Wait.
  const auto state = [](Peer* peer) { return peer->state.load(std::memory_order_seq_cst); };
  const auto settled = [&] {
    return std::all_of(peers.begin(), peers.end(), [&](Peer* p) { return state(p) != PeerState::kConnecting; });
  };
  if (!settled()) {
    if (Waker::OnWorker()) {
      return MakeError(ErrorCode::kFailedPrecondition,
                       "group '{}': WaitPeers on the worker thread, which would have to connect them", name());
    }
    driver_->hub().Wait(deadline, settled);
  }
  std::string missing;
  std::string first_missing;
  ErrorCode code = ErrorCode::kDeadlineExceeded;
  for (Peer* peer : peers) {
    const PeerState now = state(peer);
    if (now == PeerState::kReady) continue;
    if (missing.empty()) first_missing = peer->label;
    if (!missing.empty()) missing += "; ";
    missing += peer->label;
    if (now == PeerState::kConnecting) {
      missing += " is still connecting";
    } else {
      if (code != ErrorCode::kUnavailable) first_missing = peer->label;  // the one to look at
      code = ErrorCode::kUnavailable;
      missing += ": " + peer->cause.message;
    }
  }
  if (missing.empty()) return {};
  return tl::unexpected<Error>(
      Error{code, fmt::format("group '{}': peers not ready: {}", name(), missing), std::move(first_missing)});
}

void DomainGroup::RemovePeer(PeerHandle handle) {
  Peer* peer = peers_->Find(handle);
  if (peer == nullptr || peer->remove_requested.exchange(true, std::memory_order_relaxed)) return;
  peers_->Forget(*peer);
  driver_->Submit(&peer->remove);
}

// --- memory

Result<RegisteredMemory> DomainGroup::RegisterMemory(void* address, uint64_t length, MemoryKind kind, Access access) {
  return registrations_->Register(address, length, kind, access);
}

Status DomainGroup::DeregisterMemory(const RegisteredMemory& memory) { return registrations_->Release(memory); }

Result<Bytes> DomainGroup::Describe(const RegisteredMemory& memory) const {
  const RegistrationCache::Entry* entry = registrations_->Find(memory);
  if (entry == nullptr) {
    return MakeError(ErrorCode::kNotFound, "group '{}': describe: {} bytes at {} (id {}) are not registered", name(),
                     memory.length, memory.address, memory.id);
  }
  if (entry->access != Access::kRemoteWrite) {
    return MakeError(ErrorCode::kPermissionDenied,
                     "group '{}': describe: {} bytes at {} are registered for local use only; register them with "
                     "Access::kRemoteWrite",
                     name(), memory.length, memory.address);
  }
  RemoteMemory remote = registrations_->Describe(memory, *entry);
  remote.incarnation = incarnation_;
  return SerializeDescriptor(remote);
}

Result<RemoteMemory> DomainGroup::ParseDescriptor(ByteView descriptor) {
  return ::jax_fabric::ParseDescriptor(descriptor);
}

void* DomainGroup::MapRemote(PeerHandle handle, const RemoteMemory& memory) {
  Peer* peer = peers_->Find(handle);
  // Acquire, partner: the store of kReady; `ids` was written before.
  if (peer == nullptr || peer->state.load(std::memory_order_acquire) != PeerState::kReady) return nullptr;
  if (memory.nics.size() != nic_count() || memory.pieces != nullptr) return nullptr;
  if (memory.incarnation != 0 && memory.incarnation != peer->address.incarnation) return nullptr;
  return driver_->domains()[0]->MapRemote(peer->ids[0].load(std::memory_order_relaxed), memory.nics[0].remote_address,
                                          memory.nics[0].remote_key, memory.length);
}

// --- immediates

Result<uint32_t> DomainGroup::AllocateImmediates(uint32_t count) { return driver_->imm_counter().Allocate(count); }

Status DomainGroup::ReleaseImmediates(uint32_t first, uint32_t count) {
  return driver_->imm_counter().Release(first, count);
}

Status DomainGroup::PeerStatus(PeerHandle handle) const {
  JF_ASSIGN_OR_RETURN(const Peer* peer, planner_->FindPeer(handle, "peer status"));
  const PeerState state =
      peer->state.load(std::memory_order_acquire);  // partner: FailPeer, which writes `cause` before
  if (state == PeerState::kConnecting || state == PeerState::kReady) return {};
  return tl::unexpected<Error>(peer->cause);
}

std::string DomainGroup::PeerLabel(PeerHandle handle) const {
  const Result<Peer*> peer = planner_->FindPeer(handle, "peer label");
  return peer ? (*peer)->label : std::string();
}

Result<std::string> DomainGroup::PeerPath(PeerHandle handle) const {
  JF_ASSIGN_OR_RETURN(const Peer* peer, planner_->FindPeer(handle, "peer path"));
  // Acquire, partner: the store of kReady; `ids` was written before.
  if (peer->state.load(std::memory_order_acquire) != PeerState::kReady) return "not connected";
  return driver_->domains()[0]->peer_path(peer->ids[0].load(std::memory_order_relaxed));
}

uint64_t DomainGroup::peer_losses() const { return driver_->imm_counter().peer_losses(); }

Status DomainGroup::ExpectImmediate(uint32_t immediate, uint32_t count, Deadline deadline, WorkerCallback callback,
                                    std::optional<uint64_t> losses_seen) {
  JF_RETURN_IF_ERROR(CheckAccepting("expect immediate"));
  JF_ASSIGN_OR_RETURN(DriverRequest * request,
                      driver_->imm_counter().PrepareExpectation(immediate, count, deadline, callback, losses_seen));
  driver_->Submit(request);
  return {};
}

void DomainGroup::CancelExpectation(uint32_t immediate) {
  DriverRequest* request = driver_->imm_counter().PrepareCancellation(immediate);
  if (request != nullptr) driver_->Submit(request);
}

std::unique_ptr<Poller> DomainGroup::AddPoller(std::function<bool()> poll, PollerSet::Urgency urgency) {
  auto poller = driver_->pollers().Add(std::move(poll), urgency);
  driver_->WakeWorker();
  return poller;
}

uint64_t DomainGroup::stray_immediates() const { return driver_->imm_counter().strays(); }

Result<uint64_t> DomainGroup::WriteImmediates(PeerHandle handle, uint64_t max_length) const {
  JF_ASSIGN_OR_RETURN(Peer * peer, planner_->FindPeer(handle, "write immediates"));
  return PartCount(max_length, static_cast<uint32_t>(nic_count()), peer->part_limit, Spread::kAllNics);
}

Result<uint64_t> DomainGroup::ScatterImmediates(PeerHandle handle, uint64_t max_length) const {
  JF_ASSIGN_OR_RETURN(Peer * peer, planner_->FindPeer(handle, "scatter immediates"));
  return PartCount(max_length, static_cast<uint32_t>(nic_count()), peer->part_limit, Spread::kOneNic);
}

// --- grants

Status DomainGroup::CheckGrants(const char* what) const {
  JF_RETURN_IF_ERROR(CheckAccepting(what));
  if (messages_->receiving()) return {};
  return MakeError(ErrorCode::kFailedPrecondition,
                   "group '{}': {}: grants are taken back by messages: call ReceiveMessages first", name(), what);
}

Status DomainGroup::CheckGrant(const char* what, const RequestOptions& options, PeerHandle peer, PeerHandle first,
                               std::optional<uint32_t> immediate) const {
  if (!options.grant) return {};
  JF_RETURN_IF_ERROR(CheckGrants(what));
  if (peer == first && immediate == options.grant->immediate) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "group '{}': {} under grant {}: every write has to go to the peer that gave it and to bring its "
                   "immediate, {}",
                   name(), what, options.grant->id, options.grant->immediate);
}

Result<WriteGrant> DomainGroup::OpenGrant(PeerHandle writer, uint32_t immediate) {
  JF_RETURN_IF_ERROR(CheckGrants("open grant"));
  JF_RETURN_IF_ERROR(planner_->FindPeer(writer, "open grant"));
  if (!driver_->imm_counter().IsOwned(immediate)) {
    return MakeError(ErrorCode::kNotFound, "group '{}': open grant: immediate {} was not handed out by this group",
                     name(), immediate);
  }
  return grants_->Open(writer, immediate);
}

Status DomainGroup::CloseGrant(const WriteGrant& grant) {
  JF_RETURN_IF_ERROR(CheckGrants("close grant"));
  grants_->Close(grant.id);
  return {};
}

Status DomainGroup::RevokeGrant(const WriteGrant& grant, Deadline deadline, WorkerCallback callback) {
  JF_RETURN_IF_ERROR(CheckGrants("revoke grant"));
  grants_->Revoke(grant.id, deadline, callback);
  return {};
}

Status DomainGroup::GiveUpGrant(PeerHandle owner, const WriteGrant& grant) {
  JF_RETURN_IF_ERROR(CheckGrants("give up grant"));
  JF_RETURN_IF_ERROR(planner_->FindPeer(owner, "give up grant"));
  grants_->GiveUp(owner, grant);
  return {};
}

// --- requests

Result<std::unique_ptr<PreparedScatter>> DomainGroup::PrepareScatter(std::span<const ScatterEntry> entries) {
  return ScatterState::Prepare(*driver_, *planner_, *messages_, entries);
}

Result<Transfer> DomainGroup::Write(const SingleWrite& write, RequestOptions options) {
  JF_RETURN_IF_ERROR(CheckAccepting("write"));
  JF_ASSIGN_OR_RETURN(const ShardedOperation::Write plan, planner_->Plan(write));
  JF_RETURN_IF_ERROR(CheckGrant("write", options, write.peer, write.peer, write.immediate));
  JF_ASSIGN_OR_RETURN(Submission * submission, submissions_->Take(options));
  Transfer transfer(submission);
  submission->sharded.Reset("write", Operation::OnFailure::kWithdraw);
  submission->sharded.Add(plan);
  submission->Submit(&submission->sharded, std::move(options));
  return transfer;
}

Result<Transfer> DomainGroup::WritePages(const PagedWrites& write, RequestOptions options) {
  JF_RETURN_IF_ERROR(CheckAccepting("paged write"));
  JF_ASSIGN_OR_RETURN(const PagedOperation::Plan plan, planner_->Plan(write));
  JF_RETURN_IF_ERROR(CheckGrant("paged write", options, write.peer, write.peer, write.immediate));
  JF_ASSIGN_OR_RETURN(Submission * submission, submissions_->Take(options));
  Transfer transfer(submission);
  submission->paged.SetPlan(plan);
  submission->Submit(&submission->paged, std::move(options));
  return transfer;
}

Result<Transfer> DomainGroup::Scatter(std::span<const ScatterEntry> entries, RequestOptions options) {
  JF_RETURN_IF_ERROR(CheckAccepting("scatter"));
  JF_ASSIGN_OR_RETURN(Submission * submission, submissions_->Take(options));
  Transfer transfer(submission);
  if (options.grant && entries.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "group '{}': a scatter of nothing under a grant", name());
  }
  submission->sharded.Reset("scatter", Operation::OnFailure::kContinue);
  for (size_t i = 0; i < entries.size(); ++i) {
    JF_RETURN_IF_ERROR(CheckGrant("scatter", options, entries[i].peer, entries[0].peer, entries[i].immediate));
    JF_ASSIGN_OR_RETURN(const ShardedOperation::Write plan, planner_->Plan(entries[i], i));
    submission->sharded.Add(plan);
  }
  submission->Submit(&submission->sharded, std::move(options));
  return transfer;
}

Result<Transfer> DomainGroup::Barrier(std::span<const BarrierTarget> targets, RequestOptions options) {
  JF_RETURN_IF_ERROR(CheckAccepting("barrier"));
  JF_ASSIGN_OR_RETURN(Submission * submission, submissions_->Take(options));
  Transfer transfer(submission);
  if (options.grant && targets.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "group '{}': a barrier of nobody under a grant", name());
  }
  submission->sharded.Reset("barrier", Operation::OnFailure::kContinue);
  for (size_t i = 0; i < targets.size(); ++i) {
    JF_RETURN_IF_ERROR(CheckGrant("barrier", options, targets[i].peer, targets[0].peer, targets[i].immediate));
    JF_ASSIGN_OR_RETURN(const ShardedOperation::Write plan, planner_->Plan(targets[i], i));
    submission->sharded.Add(plan);
  }
  submission->Submit(&submission->sharded, std::move(options));
  return transfer;
}

// --- messages

Result<Transfer> DomainGroup::Send(PeerHandle handle, ByteView message, RequestOptions options) {
  JF_RETURN_IF_ERROR(CheckAccepting("send"));
  if (options.grant) {
    return MakeError(ErrorCode::kInvalidArgument, "group '{}': send: grants are for writes, not for messages", name());
  }
  JF_ASSIGN_OR_RETURN(Peer * peer, planner_->FindPeer(handle, "send"));
  const uint64_t limit = messages_->max_send_bytes(*peer);
  if (message.size() > limit) {
    return MakeError(ErrorCode::kOutOfRange,
                     "group '{}': send to {}: {} bytes; a message has at most {}: write the payload into the peer's "
                     "memory instead",
                     name(), peer->label, message.size(), limit);
  }
  JF_ASSIGN_OR_RETURN(Submission * submission, submissions_->Take(options));
  Transfer transfer(submission);
  JF_ASSIGN_OR_RETURN(const MessagePool::Slot slot, messages_->TakeSlot(*driver_, options));
  const uint64_t packet_bytes = messages_->Pack(slot, message, *peer);
  submission->SetMessageSlot(messages_.get(), slot.index);
  submission->send.SetMessage(peer, slot.data, slot.local_key, packet_bytes);
  submission->Submit(&submission->send, std::move(options));
  return transfer;
}

Status DomainGroup::ReceiveMessages(ReceiveOptions options) {
  JF_RETURN_IF_ERROR(CheckAccepting("receive messages"));
  return messages_->StartReceives(*driver_, std::move(options));
}

uint64_t DomainGroup::forged_messages() const { return messages_->forged(); }
uint64_t DomainGroup::replayed_messages() const { return messages_->replayed(); }

}  // namespace jax_fabric
