#include "csrc/engine/sharded_operation.h"

#include <algorithm>

namespace jax_fabric {

void ShardedOperation::Reset(std::string_view verb, OnFailure on_failure) {
  SetKind(verb, on_failure);
  streams_.clear();
  first_streams_.clear();
  pieces_.clear();
}

void ShardedOperation::Add(const Write& write) {
  first_streams_.push_back(static_cast<uint32_t>(streams_.size()));
  const uint64_t parts = PartCount(write.max_length, write.nic_count, write.peer->part_limit, write.spread);
  if (!write.pieces.empty()) pieces_.push_back(write.pieces);
  const uint32_t streams = static_cast<uint32_t>(std::min<uint64_t>(parts, write.nic_count));
  for (uint32_t i = 0; i < streams; ++i) {
    const uint32_t nic = (write.first_nic + i) % write.nic_count;
    Stream& stream = streams_.emplace_back();
    stream.lane = &write.peer->lanes[nic];
    stream.count = (parts - i + streams - 1) / streams;
    stream.source = write.source;
    stream.local_key = write.local_keys[nic];
    stream.remote_address = write.remote_addresses[nic];
    stream.remote_key = write.remote_keys[nic];
    write.pieces.Set(stream);
    stream.length = write.length;
    stream.part_count = parts;
    stream.first_part = i;
    stream.part_step = streams;
    stream.immediate = write.immediate;
  }
}

void ShardedOperation::SetLength(size_t index, uint64_t length) {
  const size_t end = index + 1 < first_streams_.size() ? first_streams_[index + 1] : streams_.size();
  for (size_t i = first_streams_[index]; i < end; ++i) streams_[i].length = length;
}

uint64_t ShardedOperation::LongestOf(size_t index) const {
  const Stream& stream = streams_[first_streams_[index]];
  return stream.part_count * stream.lane->peer->part_limit;
}

PostResult ShardedOperation::Post(Domain& domain, Stream& stream, uint32_t, uint32_t& posted) {
  posted = 1;
  Part part{0, stream.length};
  if (stream.part_count > 1) {
    part = PartOf(stream.length, stream.part_count, stream.first_part + stream.next_index * stream.part_step,
                  stream.lane->peer->part_limit);
  }
  WriteRequest request;
  request.peer = stream.lane->id;
  request.context = reinterpret_cast<uint64_t>(&stream);
  request.source = part.length == 0 ? nullptr : stream.source + part.offset;
  request.local_key = stream.local_key;
  request.length = part.length;
  // An empty part names the first byte: its own offset may be the end of the region.
  request.remote_address = stream.remote_address + (part.length == 0 ? 0 : part.offset);
  request.remote_key = stream.remote_key;
  request.immediate = stream.immediate;
  if (!pieces_.empty() && part.length > 0) UsePieces(stream, part.offset, part.offset, request);
  return domain.PostWrite(request);
}

}  // namespace jax_fabric
