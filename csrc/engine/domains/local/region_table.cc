#include "csrc/engine/domains/local/region_table.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/base/clock.h"
#include "csrc/base/random_bytes.h"
#include "csrc/engine/domains/local/process_identity.h"

namespace jax_fabric::local {
namespace {

// A peer is inside a region for the copy of one slice: microseconds. Longer means that it is stopped or was starved.
constexpr int64_t kDrainTimeoutUs = 10'000'000;
constexpr int64_t kLivenessCheckUs = 10'000;

}  // namespace

RegionTable::RegionTable(std::shared_ptr<Mailbox> mailbox)
    : mailbox_(std::move(mailbox)), records_(mailbox_->geometry().regions) {
  free_.reserve(records_.size());
  for (auto i = static_cast<uint32_t>(records_.size()); i > 0; --i) free_.push_back(i - 1);
}

Result<MemoryRegion> RegionTable::Add(void* address, uint64_t length, Access access) {
  auto file = FindSharedMemory(address, length);
  JF_ASSIGN_OR_RETURN(const uint64_t salt, RandomId());
  std::lock_guard lock(mutex_);
  if (free_.empty()) {
    return MakeError(ErrorCode::kResourceExhausted,
                     "local domain: {} regions are registered, no more fit: deregister some or raise "
                     "LocalDomainOptions::max_regions",
                     records_.size());
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  touched_ = std::max(touched_, index + 1);
  // A salt whose high bits are all 0 would make key 0 out of index 0, which means "free".
  const uint64_t key = (salt | uint64_t{1} << 63) >> kKeyIndexBits << kKeyIndexBits | index;

  Record& record = records_[index];
  RegionEntry& entry = mailbox_->region(index);
  const auto begin = reinterpret_cast<uint64_t>(address);
  entry.address.store(begin, std::memory_order_relaxed);
  entry.length.store(length, std::memory_order_relaxed);
  entry.memory_id.store(file ? file->id : 0, std::memory_order_relaxed);
  entry.memory_offset.store(file ? begin - reinterpret_cast<uint64_t>(file->mapping.data()) : 0,
                            std::memory_order_relaxed);
  entry.remote_write.store(access == Access::kRemoteWrite ? 1 : 0, std::memory_order_relaxed);
  record.file = std::move(file);
  // Not a store: a Hold with a stale key may be between its increment and its decrement.
  record.holders.fetch_and(~kRemoved, std::memory_order_relaxed);
  // Release, with the loads of key in LaneWriter::EnterRegion and Contains: the fields above belong to this key.
  entry.key.store(key, std::memory_order_release);

  MemoryRegion region;
  region.address = region.remote_address = begin;
  region.length = length;
  region.local_key = region.remote_key = key;
  region.kind = MemoryKind::kHost;
  record.region = region;
  record.access = access;
  return region;
}

Status RegionTable::Remove(const MemoryRegion& region) {
  const uint64_t key = region.local_key;
  const uint32_t index = KeyIndex(key);
  {
    std::lock_guard lock(mutex_);
    JF_RETURN_IF_ERROR(Invalidate(index, region));
  }
  JF_RETURN_IF_ERROR(Drain(index));
  std::lock_guard lock(mutex_);
  Record& record = records_[index];
  if (record.draining_key != key) return {};  // another thread removed it at the same time
  record.draining_key = 0;
  record.file.reset();
  free_.push_back(index);
  return {};
}

Status RegionTable::Invalidate(uint32_t index, const MemoryRegion& region) {
  const uint64_t key = region.local_key;
  // Relaxed: all changes of the key are under mutex_.
  if (key == 0 || index >= records_.size() ||
      (records_[index].draining_key != key && mailbox_->region(index).key.load(std::memory_order_relaxed) != key)) {
    return MakeError(ErrorCode::kNotFound,
                     "local domain: the region at {:#x} with the key {:#x} is not registered (any more)",
                     region.address, key);
  }
  Record& record = records_[index];
  if (record.draining_key == key) return {};
  uint32_t holders = 0;
  // Acquire, with the release in Release: the requests that held it are done with the source.
  if (!record.holders.compare_exchange_strong(holders, kRemoved, std::memory_order_acquire)) {
    return MakeError(ErrorCode::kFailedPrecondition,
                     "local domain: {} posted requests still use the region at {:#x}: deregister it after their "
                     "completions",
                     holders, region.address);
  }
  // Seq_cst: Dekker with LaneWriter::EnterRegion, see there.
  mailbox_->region(index).key.store(0, std::memory_order_seq_cst);
  record.draining_key = key;
  record.region = {};
  return {};
}

void RegionTable::RemoveAll() {
  std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < touched_; ++i) {
    if (mailbox_->region(i).key.exchange(0, std::memory_order_seq_cst) == 0 && records_[i].draining_key == 0) continue;
    [[maybe_unused]] const Status given_up = Drain(i);  // nobody is left to hear of it
    records_[i].file.reset();
    records_[i].region = {};
  }
}

Status RegionTable::Drain(uint32_t index) const {
  for (uint32_t i = 0; i < mailbox_->geometry().lanes; ++i) {
    // Seq_cst: the claim of a lane comes before EnterRegion's load of the key, and that (if it still saw the key)
    // before our store of it: so a lane that is free here is in no region.
    if (mailbox_->lane_owner(i).load(std::memory_order_seq_cst) == LaneOwner(LaneState::kFree, 0)) continue;
    JF_RETURN_IF_ERROR(DrainLane(i, index));
  }
  return {};
}

Status RegionTable::DrainLane(uint32_t lane, uint32_t index) const {
  const Clock& clock = SteadyClock::Get();
  const Deadline deadline = Deadline::After(clock, kDrainTimeoutUs);
  Deadline liveness_check = Deadline::After(clock, kLivenessCheckUs);
  LaneHeader& header = mailbox_->lane(lane);
  // Seq_cst (which is acquire too): Dekker with EnterRegion, and pairs with the release in LeaveRegion.
  while (header.target.load(std::memory_order_seq_cst) == uint64_t{index} + 1) {
    sched_yield();
    if (!liveness_check.Passed(clock)) continue;
    liveness_check = Deadline::After(clock, kLivenessCheckUs);
    const uint32_t pid = LaneOwnerPid(mailbox_->lane_owner(lane).load(std::memory_order_acquire));
    if (!ProcessIsAlive(pid, header.owner_start_time.load(std::memory_order_relaxed))) return {};
    if (deadline.Passed(clock)) {
      return MakeError(ErrorCode::kDeadlineExceeded,
                       "local domain: process {} has been writing to a region for {} s (is it stopped?): keep the "
                       "memory and deregister it again later",
                       pid, kDrainTimeoutUs / 1'000'000);
    }
  }
  return {};
}

bool RegionTable::Contains(uint64_t key, const void* address, uint64_t length) const {
  const uint32_t index = KeyIndex(key);
  if (key == 0 || index >= records_.size()) return false;
  const RegionEntry& entry = mailbox_->region(index);
  // Acquire, with the release in Add: the fields are those of this key.
  if (entry.key.load(std::memory_order_acquire) != key) return false;
  const uint64_t offset = reinterpret_cast<uint64_t>(address) - entry.address.load(std::memory_order_relaxed);
  const uint64_t size = entry.length.load(std::memory_order_relaxed);
  return offset <= size && length <= size - offset;
}

bool RegionTable::Hold(uint64_t key) {
  const uint32_t index = KeyIndex(key);
  if (key == 0 || index >= records_.size()) return false;
  Record& record = records_[index];
  // Acquire, with Remove's exchange: past it, a removed region shows kRemoved here or no key below.
  const bool removed = (record.holders.fetch_add(1, std::memory_order_acquire) & kRemoved) != 0;
  if (!removed && mailbox_->region(index).key.load(std::memory_order_acquire) == key) return true;
  Release(key);
  return false;
}

ByteView RegionTable::Held(uint64_t key) const {
  // Relaxed: constant while it is held.
  const RegionEntry& entry = mailbox_->region(KeyIndex(key));
  return {reinterpret_cast<const std::byte*>(entry.address.load(std::memory_order_relaxed)),
          entry.length.load(std::memory_order_relaxed)};
}

void RegionTable::Release(uint64_t key) {
  // Release, with the acquire in Remove: our reads of the source come before it is deregistered.
  records_[KeyIndex(key)].holders.fetch_sub(1, std::memory_order_release);
}

bool RegionTable::Land(uint64_t key, uint64_t address, ByteView bytes) {
  const uint32_t index = KeyIndex(key);
  // Held while it is copied, so that the region stays: whoever deregisters it waits for this.
  std::lock_guard lock(mutex_);
  if (key == 0 || index >= records_.size()) return false;
  const Record& record = records_[index];
  // Unsigned: an address below the region wraps to an offset beyond every size.
  const uint64_t offset = address - record.region.address;
  if (record.region.local_key != key || record.access != Access::kRemoteWrite || offset > record.region.length ||
      bytes.size() > record.region.length - offset) {
    return false;
  }
  if (!bytes.empty()) std::memcpy(reinterpret_cast<std::byte*>(address), bytes.data(), bytes.size());
  return true;
}

Result<std::shared_ptr<const SharedMemoryFile>> RegionTable::FileOf(uint64_t key) const {
  const uint32_t index = KeyIndex(key);
  std::lock_guard lock(mutex_);
  if (key == 0 || index >= records_.size() || records_[index].region.local_key != key) {
    return MakeError(ErrorCode::kNotFound, "no region has the key {:#x} (any more)", key);
  }
  if (records_[index].access != Access::kRemoteWrite) {
    return MakeError(ErrorCode::kPermissionDenied, "the region is not registered with Access::kRemoteWrite");
  }
  if (!records_[index].file) {
    return MakeError(ErrorCode::kFailedPrecondition, "the region is not inside a SharedMemory: use AllocateShared");
  }
  return records_[index].file;
}

}  // namespace jax_fabric::local
