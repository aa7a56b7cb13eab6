#include "csrc/engine/operation.h"

#include <utility>

#include "csrc/engine/group_driver.h"
#include "csrc/engine/registration_cache.h"

namespace jax_fabric {

void Operation::Start(GroupDriver& driver) { driver.Begin(*this); }

void Operation::UsePieces(const Stream& stream, uint64_t source_offset, uint64_t target_offset, WriteRequest& request) {
  const uint32_t nic = stream.lane->nic;
  if (stream.source_pieces != nullptr) {
    request.local_key = stream.source_pieces->KeyAt(stream.source_offset + source_offset, nic);
  }
  if (stream.target_pieces != nullptr) {
    const auto target = RemoteMemory::At(*stream.target_pieces, stream.target_offset + target_offset, nic,
                                         stream.lane->peer->address.nics.size());
    request.remote_address = target.remote_address;
    request.remote_key = target.remote_key;
  }
}

void Operation::Rewind() {
  total_ = done_ = in_flight_ = queued_streams_ = 0;
  reported_ = admitted_ = false;
  error_.code = ErrorCode::kOk;
  error_.message.clear();
  error_.peer.clear();
  error_.nic.clear();
  for (Stream& stream : streams()) {
    stream.operation = this;
    stream.next_index = stream.in_flight = 0;
    total_ += stream.count;
  }
}

uint64_t Operation::posted() {
  uint64_t posted = 0;
  for (const Stream& stream : streams()) posted += stream.next_index;
  return posted;
}

void Operation::Fail(ErrorCode code, std::string cause, const Lane* lane) {
  if (failed()) return;
  error_ = Error{code == ErrorCode::kOk ? ErrorCode::kUnknown : code, std::move(cause)};
  if (lane == nullptr) return;
  error_.peer = lane->peer->label;
  error_.nic = lane->domain->name();
}

Error Operation::Describe(std::string_view group) const {
  std::string message = fmt::format("group '{}': {}: {}; {} of {} done", group, verb_, error_.message, done_, total_);
  if (in_flight_ > 0) {
    message += fmt::format(", {} still in flight: its memory may be read and written until they end", in_flight_);
  }
  return Error{error_.code, std::move(message), error_.peer, error_.nic};
}

void Operation::FailLate() {
  if (failed()) return;
  const Stream* first = nullptr;
  uint64_t others = 0;
  for (const Stream& stream : streams()) {
    if (stream.in_flight == 0 && stream.next_index == stream.count) continue;
    if (first == nullptr) {
      first = &stream;
    } else {
      ++others;
    }
  }
  if (first == nullptr) return Fail(ErrorCode::kDeadlineExceeded, "the deadline passed");
  std::string cause =
      fmt::format("the deadline passed, waiting for {} over {}", first->lane->peer->label, first->lane->domain->name());
  if (others > 0) cause += fmt::format(" (and {} more)", others);
  Fail(ErrorCode::kDeadlineExceeded, std::move(cause), first->lane);
}

}  // namespace jax_fabric
