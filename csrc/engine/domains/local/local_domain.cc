// Life of a local domain, its memory and its peers.
#include "csrc/engine/domains/local/local_domain.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "csrc/base/random_bytes.h"
#include "csrc/engine/domains/local/local_domain_impl.h"

namespace jax_fabric {
namespace {

uint32_t PowerOfTwo(uint32_t value) { return std::bit_ceil(std::clamp(value, 1u, 1u << 20)); }

local::MailboxGeometry GeometryOf(const LocalDomainOptions& options) {
  local::MailboxGeometry geometry;
  geometry.lanes = options.max_peers;
  geometry.regions = options.max_regions;
  geometry.immediates = PowerOfTwo(options.immediate_slots);
  geometry.messages = PowerOfTwo(options.message_slots);
  geometry.max_message_bytes = options.max_message_bytes;
  // Room for several of the largest; at least two, or a message at an unlucky position would never fit.
  geometry.message_bytes = std::bit_ceil(4 * std::clamp(options.max_message_bytes, 64u, 1u << 26));
  return geometry;
}

}  // namespace

uint64_t LocalDomainOptions::memory_bytes() const {
  const local::MailboxGeometry g = GeometryOf(*this);
  const uint64_t lane = sizeof(local::LaneHeader) + 8ull * (g.immediates + g.messages) + g.message_bytes +
                        local::kBounceSlots * sizeof(local::BounceSlot);
  return g.lanes * (lane + 8 + local::kPage) + g.regions * sizeof(local::RegionEntry) + 4 * local::kPage;
}

Result<std::unique_ptr<Domain>> CreateLocalDomain(const LocalDomainOptions& options) {
  JF_ASSIGN_OR_RETURN(std::unique_ptr<Domain> domain, local::LocalDomain::Create(options));
  return domain;
}

namespace local {

Result<std::unique_ptr<LocalDomain>> LocalDomain::Create(const LocalDomainOptions& options) {
  if (options.max_outstanding == 0 || options.max_receives == 0 || options.slice_bytes == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "local domain: max_outstanding {}, max_receives {} and slice_bytes {} must be above 0",
                     options.max_outstanding, options.max_receives, options.slice_bytes);
  }
  JF_ASSIGN_OR_RETURN(ProcessHub * hub, ProcessHub::Get());
  JF_ASSIGN_OR_RETURN(const uint64_t incarnation, RandomId());
  auto endpoint = std::make_shared<Endpoint>();
  JF_ASSIGN_OR_RETURN(endpoint->mailbox, Mailbox::Create(GeometryOf(options), incarnation));
  endpoint->key = options.key;
  endpoint->regions = std::make_unique<RegionTable>(endpoint->mailbox);
  std::unique_ptr<LocalDomain> domain(new LocalDomain(options, *hub, std::move(endpoint)));
  JF_RETURN_IF_ERROR(domain->Start());
  return domain;
}

LocalDomain::LocalDomain(const LocalDomainOptions& options, ProcessHub& hub, std::shared_ptr<Endpoint> endpoint)
    : options_(options),
      hub_(hub),
      endpoint_(std::move(endpoint)),
      mailbox_(*endpoint_->mailbox),
      regions_(*endpoint_->regions),
      incarnation_(mailbox_.header().incarnation),
      deferred_(options.max_outstanding),
      completions_(options.max_outstanding),
      receives_(options.max_receives),
      lane_is_open_(options.max_peers) {
  limits_.max_write_bytes = uint64_t{1} << 46;
  limits_.max_message_bytes = options.max_message_bytes;
  limits_.max_region_bytes = uint64_t{1} << 46;
  limits_.max_outstanding = options.max_outstanding;
  limits_.max_receives = options.max_receives;
}

Status LocalDomain::Start() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) {
    return MakeError(ErrorCode::kResourceExhausted, "local domain: epoll_create1 failed: {}", strerror(errno));
  }
  JF_RETURN_IF_ERROR(Watch(mailbox_.doorbell_fd(), Completion::kUnknownPeer));
  JF_ASSIGN_OR_RETURN(const LocalAddress address, hub_.Register(endpoint_));
  registered_ = true;
  address_ = address.Seal();
  return {};
}

LocalDomain::~LocalDomain() {
  // Seq_cst: before the loads of `armed` in RingIfArmed below, so that a peer sees it or is woken to see it.
  mailbox_.header().closed.store(1, std::memory_order_seq_cst);
  for (const auto& peer : peers_) peer->Disconnect(PeerState::kRemoved);  // rings them
  if (registered_) hub_.Unregister(incarnation_);
  // Threads of this process may be in the middle of a write to our memory, which goes away after us.
  regions_.RemoveAll();
}

Status LocalDomain::Watch(int fd, uint32_t tag) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u32 = tag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return MakeError(ErrorCode::kResourceExhausted, "local domain: epoll_ctl failed: {}", strerror(errno));
}

void LocalDomain::Unwatch(int fd) {
  if (fd >= 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

std::string LocalDomain::peer_path(PeerId peer) const {
  std::lock_guard lock(peers_mutex_);
  const LocalPeer* found = FindPeer(peer);
  return std::string(found == nullptr ? "not connected" : found->path());
}

void LocalDomain::Log(const std::string& line) const {
  if (options_.log) options_.log(fmt::format("{}: {}", options_.name, line));
}

// --- memory

Result<MemoryRegion> LocalDomain::RegisterMemory(void* address, uint64_t length, MemoryKind kind, Access access) {
  if (kind != MemoryKind::kHost) {
    return MakeError(ErrorCode::kUnimplemented,
                     "local domain: memory kind {} cannot be registered, only host memory: device memory of one node "
                     "moves by kernel stores",
                     static_cast<int>(kind));
  }
  const auto begin = reinterpret_cast<uint64_t>(address);
  if (length > limits_.max_region_bytes || begin + length < begin || (address == nullptr && length > 0)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "local domain: {} bytes at {:#x} cannot be registered: not a range of memory, or above {} bytes",
                     length, begin, limits_.max_region_bytes);
  }
  return regions_.Add(address, length, access);
}

Status LocalDomain::DeregisterMemory(const MemoryRegion& region) { return regions_.Remove(region); }

void* LocalDomain::MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) {
  LocalPeer* found = nullptr;
  {
    std::lock_guard lock(peers_mutex_);
    if (peer < peers_.size()) found = peers_[peer].get();
  }
  // The words are dropped: last_error belongs to the driving thread, and null is an answer, not a failure.
  Error error;
  return found == nullptr ? nullptr : found->Map(remote_key, remote_address, length, error);
}

// --- peers

LocalPeer* LocalDomain::FindPeer(PeerId peer) const { return peer < peers_.size() ? peers_[peer].get() : nullptr; }

PeerId LocalDomain::KnownPeer(uint64_t incarnation) const {
  const auto found = peer_by_incarnation_.find(incarnation);
  return found == peer_by_incarnation_.end() ? Completion::kUnknownPeer : found->second;
}

PeerState LocalDomain::peer_state(PeerId peer) const {
  const LocalPeer* found = FindPeer(peer);
  if (found == nullptr) return PeerState::kRemoved;
  const PeerState state = found->state();
  return state == PeerState::kRemoved && IsInside(*found) ? PeerState::kFailed : state;
}

bool LocalDomain::IsInside(const LocalPeer& peer) const {
  const ProcessIdentity& process = peer.address().process;
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const LaneReader& lane) {
    return lane.sender_incarnation() == peer.address().incarnation && lane.SenderIsInside() &&
           ProcessIsAlive(process.pid, process.start_time);
  });
}

Result<PeerId> LocalDomain::AddPeer(ByteView bytes) {
  JF_ASSIGN_OR_RETURN(const LocalAddress address, LocalAddress::Open(bytes));
  if (const PeerId known = KnownPeer(address.incarnation); known != Completion::kUnknownPeer) return known;
  auto peer = std::make_unique<LocalPeer>(static_cast<PeerId>(peers_.size()), address);
  if (address.process_id == hub_.process_id()) {
    const std::shared_ptr<Endpoint> endpoint = hub_.Find(address.incarnation);
    if (!endpoint) {
      return MakeError(ErrorCode::kUnavailable,
                       "local domain: domain {:016x} of this process is closed: its address is stale, get the new one",
                       address.incarnation);
    }
    if (!SameSecret(endpoint->key.get(), options_.key.get())) {
      return MakeError(
          ErrorCode::kPermissionDenied,
          "local domain: domain {:016x} of this process belongs to a fabric with another secret (there: {}; "
          "here: {})",
          address.incarnation, DescribeSecret(endpoint->key.get()), DescribeSecret(options_.key.get()));
    }
    JF_RETURN_IF_ERROR(peer->ConnectWithin(endpoint->mailbox, hub_.process(), incarnation_));
  } else {
    JF_RETURN_IF_ERROR(AddProcessPeer(*peer));
  }
  const PeerId id = peer->id();
  peer_by_incarnation_[address.incarnation] = id;
  for (LaneReader& lane : lanes_) {
    if (lane.sender_incarnation() == address.incarnation) lane.peer = id;
  }
  live_.push_back(peer.get());
  std::lock_guard lock(peers_mutex_);
  peers_.push_back(std::move(peer));
  return id;
}

Status LocalDomain::AddProcessPeer(LocalPeer& peer) {
  const ProcessIdentity& process = peer.address().process;
  if (process.machine != hub_.process().machine) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "local domain: {} runs on another machine or in another container (pid and network namespaces "
                     "must be the same): use a network domain, or share the namespaces",
                     peer.label());
  }
  if (process == hub_.process() || !ProcessIsAlive(process.pid, process.start_time)) {
    return MakeError(ErrorCode::kUnavailable,
                     "local domain: {} does not run any more: its address is stale, get the new one", peer.label());
  }
  peer.StartConnect(options_);
  connecting_.push_back(peer.id());
  return {};
}

void LocalDomain::RemovePeer(PeerId id) {
  LocalPeer* peer = FindPeer(id);
  if (peer == nullptr || peer->state() == PeerState::kRemoved) return;
  std::erase(connecting_, id);
  std::erase(live_, peer);
  AbortWrites(id, ErrorCode::kCancelled);
  last_error_ = fmt::format("{} was removed", peer->label());
  Unwatch(peer->pidfd());
  RescanLanes();  // it may have opened one just now
  for (LaneReader& lane : lanes_) {
    if (lane.sender_incarnation() == peer->address().incarnation) lane.Refuse();
  }
  ForgetLanesOf(*peer, false);
  peer_by_incarnation_.erase(peer->address().incarnation);
  peer->Disconnect(PeerState::kRemoved);
}

void LocalDomain::FailPeer(LocalPeer& peer, ErrorCode code, std::string why) {
  if (peer.state() == PeerState::kFailed || peer.state() == PeerState::kRemoved) return;
  std::erase(live_, &peer);
  AbortWrites(peer.id(), ErrorCode::kUnavailable);
  last_error_ = fmt::format("{} is lost: {}", peer.label(), why);
  Log(last_error_);
  Unwatch(peer.pidfd());
  const auto& process = peer.address().process;
  ForgetLanesOf(peer, process.pid != hub_.process().pid && !ProcessIsAlive(process.pid, process.start_time));
  peer.Disconnect(PeerState::kFailed);
  Completion fault;
  fault.kind = CompletionKind::kPeerFault;
  fault.code = code;
  fault.peer = peer.id();
  faults_.emplace_back(fault, last_error_);
}

void LocalDomain::ForgetLanesOf(const LocalPeer& peer, bool process_is_dead) {
  for (LaneReader& lane : lanes_) {
    if (lane.sender_incarnation() != peer.address().incarnation) continue;
    // What a dead peer had sent is still delivered under its id; a removed one is not known any more.
    if (process_is_dead) {
      lane.abandoned = lanes_are_closing_ = true;
    } else if (peer.state() != PeerState::kFailed) {
      lane.peer = Completion::kUnknownPeer;
    }
  }
}

}  // namespace local
}  // namespace jax_fabric
