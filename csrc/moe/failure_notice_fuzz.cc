// Notices lie in memory that peers write: what is read of them is checked.
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "csrc/fuzz/fuzz_input.h"
#include "csrc/moe/failure_notice.h"

using jax_fabric::ErrorCode;
using jax_fabric::fuzz::Require;
using jax_fabric::moe::FailureNotice;

namespace {

struct alignas(8) Memory {
  std::array<uint8_t, FailureNotice::kBytes> bytes{};
};

void Read(const Memory& memory) {
  const auto read = FailureNotice::ReadFrom(memory.bytes.data());
  if (!read.has_value()) return;
  Require(read->reason.size() <= FailureNotice::kMaxReasonBytes, "a reason lies within its notice");
  Require(read->code != ErrorCode::kOk && read->code <= ErrorCode::kDataLoss, "codes are known ones");
  Memory again;
  read->WriteTo(again.bytes.data());
  const auto reread = FailureNotice::ReadFrom(again.bytes.data());
  Require(reread.has_value() && reread->reason == read->reason && reread->code == read->code &&
              reread->origin == read->origin,
          "what is written is read");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A notice of any content whose check is right: it proves that all of it is there, not that it is true.
  Memory memory;
  constexpr size_t kCheckBytes = sizeof(uint64_t);
  std::copy_n(data, std::min(size, memory.bytes.size() - kCheckBytes), memory.bytes.begin() + kCheckBytes);
  const uint64_t check = XXH3_64bits(memory.bytes.data() + kCheckBytes, memory.bytes.size() - kCheckBytes);
  std::memcpy(memory.bytes.data(), &check, kCheckBytes);
  Read(memory);
  // As a reason to be told.
  const std::string reason(reinterpret_cast<const char*>(data), size);
  Memory told;
  FailureNotice{0, ErrorCode::kInternal, reason}.WriteTo(told.bytes.data());
  const auto read = FailureNotice::ReadFrom(told.bytes.data());
  Require(read.has_value() && reason.starts_with(read->reason), "any reason can be told");
  return 0;
}
