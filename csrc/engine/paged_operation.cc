#include "csrc/engine/paged_operation.h"

#include <algorithm>

namespace jax_fabric {

void PagedOperation::SetPlan(const Plan& plan) {
  const uint64_t pages = plan.source_indices.size();
  source_offsets_.resize(pages);
  target_offsets_.resize(pages);
  for (uint64_t i = 0; i < pages; ++i) {
    source_offsets_[i] = plan.source_indices[i] * plan.source_stride;
    target_offsets_[i] = plan.target_indices[i] * plan.target_stride;
  }
  pieces_ = plan.pieces;
  stream_count_ = std::min<uint64_t>(plan.nic_count, pages);
  for (uint32_t nic = 0; nic < stream_count_; ++nic) {
    Stream& stream = streams_[nic];
    stream = Stream{};
    stream.lane = &plan.peer->lanes[nic];
    stream.count = (pages - nic + stream_count_ - 1) / stream_count_;
    stream.source = plan.source;
    stream.local_key = plan.local_keys[nic];
    stream.remote_address = plan.remote_addresses[nic];
    stream.remote_key = plan.remote_keys[nic];
    pieces_.Set(stream);
    stream.length = plan.page_length;
    stream.first_part = nic;
    stream.part_step = stream_count_;
    stream.immediate = plan.immediate;
  }
}

PostResult PagedOperation::Post(Domain& domain, Stream& stream, uint32_t room, uint32_t& posted) {
  const uint64_t page = stream.first_part + stream.next_index * stream.part_step;
  if (!pieces_.empty()) {
    posted = 1;
    return PostPage(domain, stream, page);
  }
  PagesRequest request;
  request.peer = stream.lane->id;
  request.context = reinterpret_cast<uint64_t>(&stream);
  request.source = stream.source;
  request.local_key = stream.local_key;
  request.length = stream.length;
  request.remote_address = stream.remote_address;
  request.remote_key = stream.remote_key;
  request.source_offsets = source_offsets_.data() + page;
  request.target_offsets = target_offsets_.data() + page;
  request.step = stream.part_step;
  request.count = static_cast<uint32_t>(std::min<uint64_t>(room, stream.count - stream.next_index));
  request.transfer_bytes = source_offsets_.size() * stream.length;
  request.immediate = stream.immediate;
  return domain.PostPages(request, posted);
}

// Each page may be in another piece.
PostResult PagedOperation::PostPage(Domain& domain, const Stream& stream, uint64_t page) {
  WriteRequest request;
  request.peer = stream.lane->id;
  request.context = reinterpret_cast<uint64_t>(&stream);
  request.source = stream.source + source_offsets_[page];
  request.local_key = stream.local_key;
  request.length = stream.length;
  request.remote_address = stream.remote_address + target_offsets_[page];
  request.remote_key = stream.remote_key;
  request.immediate = stream.immediate;
  UsePieces(stream, source_offsets_[page], target_offsets_[page], request);
  return domain.PostWrite(request);
}

}  // namespace jax_fabric
