#include "csrc/benchmarks/engine_contender.h"

#include <deque>
#include <utility>

namespace jax_fabric::benchmarks {
namespace {

Deadline InTime() { return Deadline::After(SteadyClock::Get(), kTimeoutUs); }

}  // namespace

Result<std::unique_ptr<EngineContender>> EngineContender::Create(std::unique_ptr<Domain> domain,
                                                                 std::span<std::byte> memory) {
  std::unique_ptr<EngineContender> made(new EngineContender(memory));
  EngineOptions options;
  options.threads = false;
  JF_ASSIGN_OR_RETURN(made->engine_, TransferEngine::Create(std::move(options)));
  GroupOptions group;
  group.name = "benchmark";
  group.domains.push_back(std::move(domain));
  JF_ASSIGN_OR_RETURN(made->group_, made->engine_->AddGroup(std::move(group)));
  return made;
}

Result<Introduction> EngineContender::Introduce() {
  JF_ASSIGN_OR_RETURN(region_,
                      group_->RegisterMemory(memory_.data(), memory_.size(), MemoryKind::kHost, Access::kRemoteWrite));
  Introduction own;
  own.address = group_->Address();
  JF_ASSIGN_OR_RETURN(own.memory, group_->Describe(region_));
  JF_ASSIGN_OR_RETURN(own.immediate, group_->AllocateImmediates(1));
  return own;
}

Status EngineContender::Connect(const Introduction& target) {
  JF_ASSIGN_OR_RETURN(target_, DomainGroup::ParseDescriptor(target.memory));
  immediate_ = target.immediate;
  JF_ASSIGN_OR_RETURN(peer_, group_->AddPeer(target.address));
  return group_->WaitPeers({&peer_, 1}, InTime());
}

Status EngineContender::Write(const Batch& batch) {
  return batch.write_bytes >= kSingleWriteBytes ? WriteSingly(batch) : WritePages(batch);
}

Status EngineContender::WritePages(const Batch& batch) {
  PagedWrites write;
  write.peer = peer_;
  write.page_length = batch.write_bytes;
  write.source = region_;
  write.source_pages = {batch.offsets, 1, 0};
  write.target = &target_;
  write.target_pages = {batch.offsets, 1, 0};
  if (batch.immediates) write.immediate = immediate_;
  JF_ASSIGN_OR_RETURN(const Transfer transfer, group_->WritePages(write, {.deadline = InTime()}));
  return Await(transfer);
}

Status EngineContender::WriteSingly(const Batch& batch) {
  std::deque<Transfer> under_way;
  for (const uint64_t offset : batch.offsets) {
    if (under_way.size() == batch.window) {
      JF_RETURN_IF_ERROR(Await(under_way.front()));
      under_way.pop_front();
    }
    SingleWrite write;
    write.peer = peer_;
    write.source = region_;
    write.source_offset = write.target_offset = offset;
    write.target = &target_;
    write.length = batch.write_bytes;
    if (batch.immediates) write.immediate = immediate_;
    JF_ASSIGN_OR_RETURN(Transfer transfer, group_->Write(write, {.deadline = InTime()}));
    under_way.push_back(std::move(transfer));
  }
  for (const Transfer& each : under_way) JF_RETURN_IF_ERROR(Await(each));
  return {};
}

Status EngineContender::Await(const Transfer& transfer) {
  while (!transfer.done()) engine_->Step();  // its deadline ends it
  return transfer.Wait(InTime());
}

}  // namespace jax_fabric::benchmarks
