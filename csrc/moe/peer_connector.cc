#include "csrc/moe/peer_connector.h"

#include <utility>

#include "csrc/base/random_bytes.h"
#include "csrc/moe/notice_board.h"

namespace jax_fabric::moe {
namespace {

// Tells this process from every other one.
Result<uint64_t> ProcessId() {
  static const Result<uint64_t> id = RandomId();
  return id;
}

}  // namespace

PeerConnector::PeerConnector(const MoeConfig& config, DomainGroup* group) : config_(config), group_(group) {}

// Memory that cannot be deregistered is in use by a write that the engine still owns; the engine outlives us.
PeerConnector::~PeerConnector() { Deregister(); }

bool PeerConnector::Deregister() {
  bool free = true;
  for (RegisteredMemory* memory : {&table_.own_memory, &table_.staging_memory, &table_.notice_memory}) {
    if (memory->address == nullptr) continue;
    const bool deregistered = group_->DeregisterMemory(*memory).has_value();
    // Notices lie in memory of our own, whatever was given.
    free = free && (deregistered || memory == &table_.notice_memory);
    *memory = {};
  }
  return free;
}

Result<RegisteredMemory> PeerConnector::Register(void* given, int64_t bytes, Access access, SharedMemory& own) {
  if (given != nullptr) return group_->RegisterMemory(given, bytes, MemoryKind::kCuda, access);
  JF_ASSIGN_OR_RETURN(own, AllocateShared(bytes));
  return group_->RegisterMemory(own.data(), own.size(), MemoryKind::kHost, access);
}

Status PeerConnector::Prepare(const Options& options) {
  options_ = options;
  JF_ASSIGN_OR_RETURN(table_.own_memory,
                      Register(options.device_memory, options.memory_bytes, Access::kRemoteWrite, memory_));
  JF_ASSIGN_OR_RETURN(table_.notice_memory,
                      Register(nullptr, NoticeBoard::MemoryBytes(config_), Access::kRemoteWrite, notices_));
  JF_ASSIGN_OR_RETURN(table_.own_incarnation, RandomId());
  table_.rank = config_.layout.shape.rank;
  table_.peers.resize(config_.layout.shape.ranks);
  acquaintances_.resize(config_.layout.shape.ranks);
  Peer& self = table_.peers[table_.rank];
  self.mapped = static_cast<std::byte*>(table_.own_memory.address);
  self.incarnation = table_.own_incarnation;
  JF_ASSIGN_OR_RETURN(self.first_immediate, group_->AllocateImmediates(config_.channels * kImmediatesPerChannel));
  return {};
}

uint64_t PeerConnector::ConfigHash() const { return config_.Hash() + options_.memory_options; }

Result<Bytes> PeerConnector::Introduction(ByteView device_memory) const {
  moe::Introduction introduction;
  introduction.rank = table_.rank;
  JF_ASSIGN_OR_RETURN(introduction.process, ProcessId());
  introduction.config_hash = ConfigHash();
  introduction.incarnation = table_.own_incarnation;
  introduction.first_immediate = table_.peers[table_.rank].first_immediate;
  introduction.address = group_->Address();
  JF_ASSIGN_OR_RETURN(introduction.descriptor, group_->Describe(table_.own_memory));
  introduction.membership_epoch = config_.membership_epoch;
  introduction.device_memory.assign(device_memory.begin(), device_memory.end());
  introduction.node = options_.node;
  JF_ASSIGN_OR_RETURN(introduction.notices, group_->Describe(table_.notice_memory));
  return introduction.Serialize(group_->key());
}

Status PeerConnector::AddPeer(int32_t rank, ByteView bytes) {
  JF_ASSIGN_OR_RETURN(const moe::Introduction introduction, moe::Introduction::Parse(bytes));
  if (introduction.rank != static_cast<uint32_t>(rank)) {
    return MakeError(ErrorCode::kInvalidArgument, "introductions[{}] is that of rank {}: pass them in rank order", rank,
                     introduction.rank);
  }
  if (introduction.membership_epoch != config_.membership_epoch) {
    return MakeError(ErrorCode::kFailedPrecondition,
                     "introductions[{}] is of membership epoch {}, and rank {} is in epoch {}: ranks that were lost or "
                     "have come back change the epoch, and everybody needs an introduction of the new one",
                     rank, introduction.membership_epoch, table_.rank, config_.membership_epoch);
  }
  if (introduction.config_hash != ConfigHash()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "rank {} has another expert-parallel configuration than rank {}: num_experts, top_k, max_tokens, "
        "private_tokens, hidden, dtypes, capacity, channels, on_overflow, force_staged and the ranks that take part "
        "must be equal on all ranks",
        rank, table_.rank);
  }
  JF_ASSIGN_OR_RETURN(const uint64_t process, ProcessId());
  Acquaintance& acquaintance = acquaintances_[rank];
  acquaintance = {.same_process = introduction.process == process,
                  .same_node = introduction.node != 0 && introduction.node == options_.node,
                  .device_memory = introduction.device_memory};
  table_.one_process = table_.one_process && acquaintance.same_process;
  if (rank == table_.rank) return {};
  Peer& peer = table_.peers[rank];
  // First, since it says which secret the peer has.
  JF_ASSIGN_OR_RETURN(peer.handle, group_->AddPeer(introduction.address));
  JF_RETURN_IF_ERROR(introduction.Authenticate(bytes, group_->key()));
  JF_ASSIGN_OR_RETURN(peer.memory, DomainGroup::ParseDescriptor(introduction.descriptor));
  JF_ASSIGN_OR_RETURN(peer.notices, DomainGroup::ParseDescriptor(introduction.notices));
  peer.first_immediate = introduction.first_immediate;
  peer.incarnation = introduction.incarnation;
  return {};
}

Status PeerConnector::Connect(std::span<const Bytes> introductions, Deadline deadline) {
  if (introductions.size() != table_.peers.size()) {
    return MakeError(ErrorCode::kInvalidArgument, "introductions: {} given, and there are {} ranks",
                     introductions.size(), table_.peers.size());
  }
  std::vector<PeerHandle> handles;
  for (size_t rank = 0; rank < introductions.size(); ++rank) {
    if (config_.IsAbsent(static_cast<int32_t>(rank))) continue;
    JF_RETURN_IF_ERROR(AddPeer(static_cast<int32_t>(rank), introductions[rank]));
    if (static_cast<int32_t>(rank) != table_.rank) handles.push_back(table_.peers[rank].handle);
  }
  JF_RETURN_IF_ERROR(group_->WaitPeers(handles, deadline));
  connected_ = true;
  for (size_t rank = 0; options_.map_peers && rank < table_.peers.size(); ++rank) {
    Peer& peer = table_.peers[rank];
    if (static_cast<int32_t>(rank) == table_.rank || config_.IsAbsent(static_cast<int32_t>(rank))) continue;
    peer.mapped = static_cast<std::byte*>(group_->MapRemote(peer.handle, peer.memory));
  }
  if (options_.staging_bytes == 0 || mapped_peers() == config_.PresentRanks()) return {};
  JF_ASSIGN_OR_RETURN(table_.staging_memory, Register(nullptr, options_.staging_bytes, Access::kLocalOnly, staging_));
  return {};
}

Status PeerConnector::RegisterDeviceStaging(void* memory, int64_t bytes) {
  JF_ASSIGN_OR_RETURN(table_.staging_memory, Register(memory, bytes, Access::kLocalOnly, staging_));
  return {};
}

int32_t PeerConnector::mapped_peers() const {
  int32_t count = 0;
  for (const Peer& peer : table_.peers) count += peer.mapped != nullptr;
  return count;
}

std::vector<int32_t> PeerConnector::LostRanks() const {
  std::vector<int32_t> lost;
  if (!connected_) return lost;
  for (int32_t rank = 0; rank < config_.layout.shape.ranks; ++rank) {
    if (rank == table_.rank || config_.IsAbsent(rank) || group_->PeerStatus(table_.peers[rank].handle)) continue;
    lost.push_back(rank);
  }
  return lost;
}

}  // namespace jax_fabric::moe
