#include "csrc/engine/request_planner.h"

#include <algorithm>

namespace jax_fabric {
namespace {

bool Inside(uint64_t offset, uint64_t length, uint64_t size) { return offset <= size && length <= size - offset; }

void SetSourcePieces(TransferPieces& pieces, const RegistrationCache::Entry& entry, const std::byte* source) {
  if (entry.pieces == nullptr) return;
  pieces.source = entry.pieces;
  pieces.source_offset = reinterpret_cast<uint64_t>(source) - entry.address;
}

void SetTargetPieces(TransferPieces& pieces, const RemoteMemory& target, uint64_t offset) {
  if (target.pieces == nullptr) return;
  pieces.target = target.pieces;
  pieces.target_offset = target.pieces->offset + offset;
}

void SetSource(ShardedOperation::Write& plan, const RegistrationCache::Entry& entry, const std::byte* source,
               uint32_t nic_count) {
  plan.source = source;
  for (uint32_t nic = 0; nic < nic_count; ++nic) plan.local_keys[nic] = entry.regions[nic].local_key;
  SetSourcePieces(plan.pieces, entry, source);
}

void SetTarget(ShardedOperation::Write& plan, const RemoteMemory& target, uint64_t offset, uint32_t nic_count) {
  for (uint32_t nic = 0; nic < nic_count; ++nic) {
    const RemoteMemory::Nic at = target.At(offset, nic);
    plan.remote_addresses[nic] = at.remote_address;
    plan.remote_keys[nic] = at.remote_key;
  }
  SetTargetPieces(plan.pieces, target, offset);
}

// The largest page and whether offset + index * stride + length stays inside for all; 64-bit without overflow.
Status CheckPages(const PageSet& pages, uint64_t page_length, uint64_t size, std::string_view side) {
  for (size_t i = 0; i < pages.indices.size(); ++i) {
    const uint64_t index = pages.indices[i];
    uint64_t begin = 0;
    const bool overflow =
        __builtin_mul_overflow(index, pages.stride, &begin) || __builtin_add_overflow(begin, pages.offset, &begin);
    if (overflow || !Inside(begin, page_length, size)) {
      return MakeError(ErrorCode::kOutOfRange,
                       "paged write: {} page {} (index {}, stride {}, offset {}, {} bytes) is outside of the memory's "
                       "{} bytes",
                       side, i, index, pages.stride, pages.offset, page_length, size);
    }
  }
  return {};
}

}  // namespace

Result<Peer*> RequestPlanner::FindPeer(PeerHandle handle, std::string_view what) const {
  Peer* peer = peers_.Find(handle);
  if (peer == nullptr) {
    return MakeError(ErrorCode::kNotFound, "{}: peer handle {} did not come from AddPeer of this group", what, handle);
  }
  return peer;
}

Status RequestPlanner::CheckTarget(const Peer& peer, const RemoteMemory* target, uint64_t offset, uint64_t length,
                                   std::string_view what) const {
  if (target == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument, "{} to {}: no target memory; even an empty write names some", what,
                     peer.label);
  }
  if (target->nics.size() != nic_count_) {
    return MakeError(ErrorCode::kInvalidArgument, "{} to {}: the target's descriptor is for {} NICs, this group has {}",
                     what, peer.label, target->nics.size(), nic_count_);
  }
  if (target->incarnation != 0 && target->incarnation != peer.address.incarnation) {
    return MakeError(ErrorCode::kFailedPrecondition,
                     "{} to {}: the descriptor is of incarnation {:016x}, the peer is {:016x}; it was restarted or is "
                     "another one: exchange descriptors again",
                     what, peer.label, target->incarnation, peer.address.incarnation);
  }
  if (!Inside(offset, length, target->length)) {
    return MakeError(ErrorCode::kOutOfRange, "{} to {}: bytes [{}, {} + {}) are outside of the target's {} bytes", what,
                     peer.label, offset, offset, length, target->length);
  }
  return {};
}

Result<const RegistrationCache::Entry*> RequestPlanner::CheckSource(const RegisteredMemory& memory, uint64_t offset,
                                                                    uint64_t length, std::string_view what) const {
  const RegistrationCache::Entry* entry = registrations_.Find(memory);
  if (entry == nullptr) {
    return MakeError(ErrorCode::kNotFound, "{}: the source memory ({} bytes at {}, id {}) is not registered", what,
                     memory.length, memory.address, memory.id);
  }
  if (!Inside(offset, length, memory.length)) {
    return MakeError(ErrorCode::kOutOfRange, "{}: bytes [{}, {} + {}) are outside of the source's {} bytes", what,
                     offset, offset, length, memory.length);
  }
  return entry;
}

Result<ShardedOperation::Write> RequestPlanner::Plan(const SingleWrite& write) const {
  JF_ASSIGN_OR_RETURN(Peer * peer, FindPeer(write.peer, "write"));
  JF_RETURN_IF_ERROR(CheckTarget(*peer, write.target, write.target_offset, write.length, "write"));
  ShardedOperation::Write plan;
  plan.peer = peer;
  plan.nic_count = nic_count_;
  plan.length = write.length;
  plan.max_length = write.max_length == 0 ? write.length : write.max_length;
  plan.immediate = write.immediate;
  plan.spread = Spread::kAllNics;
  if (plan.max_length < write.length || plan.max_length > kMaxTransferBytes) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "write to {}: max_length {} must be at least the length {} and at "
                     "most {}",
                     peer->label, write.max_length, write.length, kMaxTransferBytes);
  }
  if (write.length > 0) {
    JF_ASSIGN_OR_RETURN(const auto* entry, CheckSource(write.source, write.source_offset, write.length, "write"));
    SetSource(plan, *entry, static_cast<const std::byte*>(write.source.address) + write.source_offset, nic_count_);
  }
  SetTarget(plan, *write.target, write.target_offset, nic_count_);
  return plan;
}

Result<ShardedOperation::Write> RequestPlanner::Plan(const ScatterEntry& entry, size_t index) const {
  JF_ASSIGN_OR_RETURN(Peer * peer, FindPeer(entry.peer, "scatter"));
  JF_RETURN_IF_ERROR(CheckTarget(*peer, entry.target, entry.target_offset, entry.length, "scatter"));
  ShardedOperation::Write plan;
  plan.peer = peer;
  plan.nic_count = nic_count_;
  plan.first_nic = static_cast<uint32_t>(index % nic_count_);
  plan.length = entry.length;
  plan.max_length = std::max(entry.max_length, entry.length);
  plan.immediate = entry.immediate;
  if (plan.max_length > kMaxTransferBytes) {
    return MakeError(ErrorCode::kInvalidArgument, "scatter to {}: max_length {} is above {}", peer->label,
                     plan.max_length, kMaxTransferBytes);
  }
  if (entry.source != nullptr) {
    const uint64_t offset =
        reinterpret_cast<uint64_t>(entry.source) - reinterpret_cast<uint64_t>(entry.source_memory.address);
    JF_ASSIGN_OR_RETURN(const auto* source, CheckSource(entry.source_memory, offset, entry.length, "scatter"));
    SetSource(plan, *source, static_cast<const std::byte*>(entry.source), nic_count_);
  } else if (entry.length > 0) {
    return MakeError(ErrorCode::kInvalidArgument, "scatter to {}: {} bytes from a null source", peer->label,
                     entry.length);
  }
  SetTarget(plan, *entry.target, entry.target_offset, nic_count_);
  return plan;
}

Result<ShardedOperation::Write> RequestPlanner::Plan(const BarrierTarget& target, size_t index) const {
  JF_ASSIGN_OR_RETURN(Peer * peer, FindPeer(target.peer, "barrier"));
  JF_RETURN_IF_ERROR(CheckTarget(*peer, target.target, 0, 0, "barrier"));
  ShardedOperation::Write plan;
  plan.peer = peer;
  plan.nic_count = nic_count_;
  plan.first_nic = static_cast<uint32_t>(index % nic_count_);
  plan.immediate = target.immediate;
  SetTarget(plan, *target.target, 0, nic_count_);
  return plan;
}

Result<PagedOperation::Plan> RequestPlanner::Plan(const PagedWrites& write) const {
  JF_ASSIGN_OR_RETURN(Peer * peer, FindPeer(write.peer, "paged write"));
  JF_RETURN_IF_ERROR(CheckTarget(*peer, write.target, 0, 0, "paged write"));
  JF_ASSIGN_OR_RETURN(const auto* entry, CheckSource(write.source, 0, 0, "paged write"));
  const PageSet& from = write.source_pages;
  const PageSet& to = write.target_pages;
  if (from.indices.size() != to.indices.size() || from.indices.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "paged write to {}: {} source pages and {} target pages; there must "
                     "be as many of both, and at least one",
                     peer->label, from.indices.size(), to.indices.size());
  }
  if (write.page_length > peer->part_limit) {
    return MakeError(ErrorCode::kOutOfRange,
                     "paged write to {}: pages of {} bytes; one write carries at most {}: use "
                     "smaller pages",
                     peer->label, write.page_length, peer->part_limit);
  }
  JF_RETURN_IF_ERROR(CheckPages(from, write.page_length, write.source.length, "source"));
  JF_RETURN_IF_ERROR(CheckPages(to, write.page_length, write.target->length, "target"));
  PagedOperation::Plan plan;
  plan.peer = peer;
  plan.nic_count = nic_count_;
  plan.source = static_cast<const std::byte*>(write.source.address) + from.offset;
  for (uint32_t nic = 0; nic < nic_count_; ++nic) {
    plan.local_keys[nic] = entry->regions[nic].local_key;
    plan.remote_addresses[nic] = write.target->nics[nic].remote_address + to.offset;
    plan.remote_keys[nic] = write.target->nics[nic].remote_key;
  }
  SetSourcePieces(plan.pieces, *entry, plan.source);
  SetTargetPieces(plan.pieces, *write.target, to.offset);
  plan.page_length = write.page_length;
  plan.source_stride = from.stride;
  plan.target_stride = to.stride;
  plan.source_indices = from.indices;
  plan.target_indices = to.indices;
  plan.immediate = write.immediate;
  return plan;
}

}  // namespace jax_fabric
