#include "csrc/engine/domains/connectx/lane.h"

#include <bit>

#include "csrc/engine/domains/connectx/work_id.h"

namespace jax_fabric::connectx {

Lane::Lane(Connection& connection, uint32_t index, QueuePair pair, uint32_t depth)
    : connection_(connection),
      index_(index),
      depth_(depth),
      mask_(std::bit_ceil(depth) - 1),
      pair_(std::move(pair)),
      ring_(size_t{mask_} + 1) {}

uint64_t Lane::NextId(uint32_t ahead) const { return WorkId{WorkId::Kind::kLane, index_, tail_ + ahead}.Pack(); }

uint32_t Lane::CountTo(uint32_t position) const {
  const uint32_t count = position - head_ + 1;
  return count <= in_flight() ? count : 0;
}

void Lane::Break(ErrorCode code, std::string cause) {
  if (broken_) return;
  broken_ = true;
  code_ = code;
  cause_ = std::move(cause);
}

void Lane::Close() {
  if (closing_) return;
  closing_ = true;
  Break(ErrorCode::kCancelled, "the connection was closed");
  if (!pair_.Fail()) return Destroy();
  ibv_send_wr marker = {};
  marker.wr_id = NextId(0);
  marker.opcode = IBV_WR_SEND;
  marker.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(pair_.get(), &marker, &bad) != 0) return Destroy();
  Push({.marker = true});
}

void Lane::Destroy() {
  Break(ErrorCode::kCancelled, "the connection was closed");
  pair_.Destroy();
  closing_ = closed_ = true;
}

}  // namespace jax_fabric::connectx
