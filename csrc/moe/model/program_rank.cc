#include "csrc/moe/model/program_rank.h"

#include <utility>

namespace jax_fabric::moe::model {
namespace {

constexpr int64_t kTimeoutUs = 1'000'000'000;
// Where a rank's memory is said to be: nobody looks there.
constexpr uint64_t kMemoryAddress = uint64_t{1} << 40;

}  // namespace

Result<ProgramRank> ProgramRank::Create(ModelRanks& ranks, int32_t rank, int64_t memory_bytes) {
  ProgramRank self(ranks, rank);
  DomainGroup& group = *ranks[rank].group;
  JF_ASSIGN_OR_RETURN(self.memory_,
                      group.RegisterMemory(reinterpret_cast<void*>(kMemoryAddress), static_cast<uint64_t>(memory_bytes),
                                           MemoryKind::kHost, Access::kRemoteWrite));
  JF_ASSIGN_OR_RETURN(const Bytes descriptor, group.Describe(self.memory_));
  JF_ASSIGN_OR_RETURN(self.introduction_.memory, DomainGroup::ParseDescriptor(descriptor));
  JF_ASSIGN_OR_RETURN(self.introduction_.first_immediate, group.AllocateImmediates(kSignals));
  self.introduction_.address = group.Address();
  return self;
}

Status ProgramRank::Connect(std::span<const Introduction* const> introductions) {
  DomainGroup& group = *(*ranks_)[rank_].group;
  introductions_ = introductions;
  peers_.resize(introductions.size());
  std::vector<PeerHandle> others;
  for (size_t peer = 0; peer < introductions.size(); ++peer) {
    if (static_cast<int32_t>(peer) == rank_) continue;
    JF_ASSIGN_OR_RETURN(peers_[peer], group.AddPeer(introductions[peer]->address));
    others.push_back(peers_[peer]);
  }
  return group.WaitPeers(others, ranks_->In(kTimeoutUs));
}

void ProgramRank::Post(int64_t time_ns, Signal signal, std::vector<Message> messages, int64_t host_ns) {
  if (messages.empty()) return;
  ranks_->At(time_ns, [this, signal, messages = std::move(messages), host_ns] { PostNow(signal, messages, host_ns); });
}

void ProgramRank::PostNow(Signal signal, const std::vector<Message>& messages, int64_t host_ns) {
  std::vector<ScatterEntry> entries;
  entries.reserve(messages.size());
  for (const Message& message : messages) {
    const Introduction& target = *introductions_[message.target];
    ScatterEntry entry;
    entry.peer = peers_[message.target];
    entry.source = memory_.address;
    entry.source_memory = memory_;
    entry.target = &target.memory;
    entry.length = static_cast<uint64_t>(message.bytes);
    entry.immediate = target.first_immediate + static_cast<uint32_t>(signal);
    entries.push_back(entry);
    ++writes_;
    wire_bytes_ += entry.length;
  }
  ModelRanks::Rank& rank = (*ranks_)[rank_];
  rank.nic->HoldPosts(ranks_->now_ns() + host_ns);
  RequestOptions options;
  options.deadline = ranks_->In(kTimeoutUs);
  options.on_worker = {[](void* context, const Error* error) {
                         if (error != nullptr) static_cast<ProgramRank*>(context)->Fail(*error);
                       },
                       this};
  if (const auto transfer = rank.group->Scatter(entries, std::move(options)); !transfer) Fail(transfer.error());
}

void ProgramRank::Expect(Signal signal, int64_t count, std::function<void()> next) {
  if (count == 0) return next();
  waiters_.push_back({this, std::move(next)});
  const WorkerCallback callback{[](void* context, const Error* error) {
                                  auto* waiter = static_cast<Waiter*>(context);
                                  error == nullptr ? waiter->next() : waiter->rank->Fail(*error);
                                },
                                &waiters_.back()};
  const Status expected =
      (*ranks_)[rank_].group->ExpectImmediate(introduction_.first_immediate + static_cast<uint32_t>(signal),
                                              static_cast<uint32_t>(count), ranks_->In(kTimeoutUs), callback);
  if (!expected) Fail(expected.error());
}

void ProgramRank::Fail(const Error& error) {
  if (!error_ && error.code != ErrorCode::kCancelled) error_ = error;
}

}  // namespace jax_fabric::moe::model
