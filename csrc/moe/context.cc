#include "csrc/moe/context.h"

#include <atomic>
#include <thread>
#include <utility>

#include "csrc/base/random_bytes.h"
#include "csrc/moe/introduction.h"

namespace jax_fabric::moe {
namespace {

// Tells this process from every other one.
Result<uint64_t> ProcessId() {
  static const Result<uint64_t> id = RandomId();
  return id;
}

}  // namespace

Result<std::unique_ptr<Context>> Context::Create(const MoeConfig& config, DomainGroup* group, Executor* executor) {
  JF_RETURN_IF_ERROR(config.Validate());
  std::unique_ptr<Context> context(new Context(config, group, executor));
  JF_ASSIGN_OR_RETURN(context->memory_, AllocateShared(config.MemoryBytes()));
  const SharedMemory& memory = context->memory_;
  PeerTable& table = context->table_;
  JF_ASSIGN_OR_RETURN(table.own_memory,
                      group->RegisterMemory(memory.data(), memory.size(), MemoryKind::kHost, Access::kRemoteWrite));
  JF_ASSIGN_OR_RETURN(table.own_incarnation, RandomId());
  table.rank = config.layout.shape.rank;
  table.peers.resize(config.layout.shape.ranks);
  Peer& self = table.peers[table.rank];
  self.mapped = static_cast<std::byte*>(table.own_memory.address);
  self.incarnation = table.own_incarnation;
  JF_ASSIGN_OR_RETURN(self.first_immediate, group->AllocateImmediates(config.channels * kImmediatesPerChannel));
  return context;
}

Context::Context(const MoeConfig& config, DomainGroup* group, Executor* executor)
    : config_(config), group_(group), strand_(executor) {}

Context::~Context() {
  channels_.clear();
  // Memory that cannot be deregistered is in use by a write that the engine still owns; the engine outlives us.
  for (const RegisteredMemory& memory : {table_.own_memory, table_.staging_memory}) {
    if (memory.address != nullptr) (void)group_->DeregisterMemory(memory);
  }
}

Result<Bytes> Context::Introduction() const {
  moe::Introduction introduction;
  introduction.rank = table_.rank;
  JF_ASSIGN_OR_RETURN(introduction.process, ProcessId());
  introduction.config_hash = config_.Hash();
  introduction.incarnation = table_.own_incarnation;
  introduction.first_immediate = table_.peers[table_.rank].first_immediate;
  introduction.address = group_->Address();
  JF_ASSIGN_OR_RETURN(introduction.descriptor, group_->Describe(table_.own_memory));
  introduction.membership_epoch = config_.membership_epoch;
  return introduction.Serialize(group_->key());
}

Status Context::AddPeer(int32_t rank, ByteView bytes) {
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
  if (introduction.config_hash != config_.Hash()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "rank {} has another expert-parallel configuration than rank {}: num_experts, top_k, max_tokens, "
        "private_tokens, hidden, dtypes, capacity, channels, on_overflow and the ranks that take part must be equal "
        "on all ranks",
        rank, table_.rank);
  }
  JF_ASSIGN_OR_RETURN(const uint64_t process, ProcessId());
  table_.one_process = table_.one_process && introduction.process == process;
  if (rank == table_.rank) return {};
  Peer& peer = table_.peers[rank];
  // First, since it says which secret the peer has.
  JF_ASSIGN_OR_RETURN(peer.handle, group_->AddPeer(introduction.address));
  JF_RETURN_IF_ERROR(introduction.Authenticate(bytes, group_->key()));
  JF_ASSIGN_OR_RETURN(peer.memory, DomainGroup::ParseDescriptor(introduction.descriptor));
  peer.first_immediate = introduction.first_immediate;
  peer.incarnation = introduction.incarnation;
  return {};
}

Status Context::Connect(std::span<const Bytes> introductions, Deadline deadline) {
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
  for (size_t rank = 0; rank < table_.peers.size(); ++rank) {
    Peer& peer = table_.peers[rank];
    if (static_cast<int32_t>(rank) == table_.rank || config_.IsAbsent(static_cast<int32_t>(rank))) continue;
    peer.mapped = static_cast<std::byte*>(group_->MapRemote(peer.handle, peer.memory));
  }
  JF_RETURN_IF_ERROR(AllocateStaging());
  std::vector<std::unique_ptr<Channel>> channels;
  for (int32_t index = 0; index < config_.channels; ++index) {
    JF_ASSIGN_OR_RETURN(auto channel, Channel::Create(index, config_, table_, group_, &strand_));
    channels.push_back(std::move(channel));
  }
  channels_ = std::move(channels);
  return {};
}

Status Context::AllocateStaging() {
  if (mapped_peers() == config_.PresentRanks()) return {};
  JF_ASSIGN_OR_RETURN(staging_, AllocateShared(config_.channels * config_.layout.ChannelBytes()));
  JF_ASSIGN_OR_RETURN(table_.staging_memory,
                      group_->RegisterMemory(staging_.data(), staging_.size(), MemoryKind::kHost, Access::kLocalOnly));
  return {};
}

Channel* Context::channel(int32_t index) {
  if (index < 0 || index >= static_cast<int32_t>(channels_.size())) return nullptr;
  return channels_[index].get();
}

int32_t Context::mapped_peers() const {
  int32_t count = 0;
  for (const Peer& peer : table_.peers) count += peer.mapped != nullptr;
  return count;
}

std::vector<int32_t> Context::LostRanks() const {
  std::vector<int32_t> lost;
  if (channels_.empty()) return lost;
  for (int32_t rank = 0; rank < config_.layout.shape.ranks; ++rank) {
    if (rank == table_.rank || config_.IsAbsent(rank) || group_->PeerStatus(table_.peers[rank].handle)) continue;
    lost.push_back(rank);
  }
  return lost;
}

const Error* Context::error() const {
  for (const auto& channel : channels_) {
    if (const Error* error = channel->error(); error != nullptr) return error;
  }
  return nullptr;
}

bool Context::Close(Deadline deadline) {
  struct Sweep {
    Context* context = nullptr;
    Task task;
    const std::thread::id closer = std::this_thread::get_id();
    std::atomic<int> result{-1};
  };
  // Asked again and again, on the strand: cancelled expectations come back through the worker.
  while (true) {
    Sweep sweep;
    sweep.context = this;
    sweep.task.context = &sweep;
    sweep.task.run = [](void* context) {
      auto* self = static_cast<Sweep*>(context);
      bool quiet = true;
      for (const auto& channel : self->context->channels_) {
        channel->Poison(Error{ErrorCode::kCancelled, "the expert-parallel context was closed"});
        quiet = quiet && channel->Quiet();
      }
      // Another thread that runs this has yet to leave the strand, which may be gone when Close has returned. Once the
      // closing thread finds the strand idle, no other one is in it, and none will be: all callbacks have come.
      quiet = quiet && std::this_thread::get_id() == self->closer;
      // release, with the acquire below.
      self->result.store(quiet ? 1 : 0, std::memory_order_release);
    };
    strand_.PostOrRun(&sweep.task);
    int result = -1;
    while ((result = sweep.result.load(std::memory_order_acquire)) < 0) std::this_thread::yield();
    if (result == 1) return true;
    if (deadline.Passed(group_->clock())) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace jax_fabric::moe
