#include "csrc/engine/operation.h"

#include <utility>

#include "csrc/engine/group_driver.h"

namespace jax_fabric {

void Operation::Start(GroupDriver& driver) { driver.Begin(*this); }

void Operation::Rewind() {
  total_ = done_ = in_flight_ = queued_streams_ = 0;
  reported_ = false;
  error_.code = ErrorCode::kOk;
  error_.message.clear();
  for (Stream& stream : streams()) {
    stream.operation = this;
    stream.next_index = stream.in_flight = 0;
    total_ += stream.count;
  }
}

void Operation::Fail(ErrorCode code, std::string cause) {
  if (failed()) return;
  error_ = Error{code == ErrorCode::kOk ? ErrorCode::kUnknown : code, std::move(cause)};
}

Error Operation::Describe(std::string_view group) const {
  std::string message = fmt::format("group '{}': {}: {}; {} of {} done", group, verb_, error_.message, done_, total_);
  if (in_flight_ > 0) {
    message += fmt::format(", {} still in flight: its memory may be read and written until they end", in_flight_);
  }
  return Error{error_.code, std::move(message)};
}

std::string Operation::Laggards() {
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
  if (first == nullptr) return "nobody";
  std::string text = fmt::format("{} over {}", first->lane->peer->label, first->lane->domain->name());
  if (others > 0) text += fmt::format(" (and {} more)", others);
  return text;
}

}  // namespace jax_fabric
