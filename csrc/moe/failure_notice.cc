#include "csrc/moe/failure_notice.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace jax_fabric::moe {
namespace {

struct NoticeImage {
  uint64_t check;  // of all that follows
  uint32_t origin;
  uint32_t code;
  int64_t sent_exchanges;
  uint64_t reason_bytes;
  std::array<char, FailureNotice::kMaxReasonBytes> reason;
};
static_assert(sizeof(NoticeImage) == FailureNotice::kBytes);

uint64_t CheckOf(const NoticeImage& image) {
  return XXH3_64bits(reinterpret_cast<const char*>(&image) + sizeof(image.check), sizeof(image) - sizeof(image.check));
}

// A peer in this process may be writing it, by plain stores as a NIC would, of which ThreadSanitizer sees those of this
// process. What is torn does not pass the check. None where there is nothing, as nearly always.
__attribute__((no_sanitize("thread"))) std::optional<NoticeImage> CopyOf(const void* memory) {
  std::array<uint64_t, sizeof(NoticeImage) / 8> words;
  const auto* source = static_cast<const uint64_t*>(memory);
  if (__atomic_load_n(source, __ATOMIC_RELAXED) == 0) return std::nullopt;
  for (size_t i = 0; i < words.size(); ++i) words[i] = __atomic_load_n(source + i, __ATOMIC_RELAXED);
  NoticeImage image;
  std::memcpy(&image, words.data(), sizeof(image));
  return image;
}

}  // namespace

void FailureNotice::WriteTo(void* memory) const {
  NoticeImage image{};
  image.origin = static_cast<uint32_t>(origin);
  image.code = static_cast<uint32_t>(code);
  image.sent_exchanges = sent_exchanges;
  image.reason_bytes = std::min<uint64_t>(reason.size(), kMaxReasonBytes);
  // Not in the middle of a character of UTF-8.
  while (image.reason_bytes < reason.size() && image.reason_bytes > 0 &&
         (static_cast<uint8_t>(reason[image.reason_bytes]) & 0xc0) == 0x80) {
    --image.reason_bytes;
  }
  std::memcpy(image.reason.data(), reason.data(), image.reason_bytes);
  image.check = CheckOf(image);
  std::memcpy(memory, &image, sizeof(image));
}

std::optional<FailureNotice> FailureNotice::ReadFrom(const void* memory) {
  const std::optional<NoticeImage> copy = CopyOf(memory);
  if (!copy) return std::nullopt;
  const NoticeImage& image = *copy;
  if (image.check != CheckOf(image) || image.reason_bytes > kMaxReasonBytes) return std::nullopt;
  if (image.code == 0 || image.code > static_cast<uint32_t>(ErrorCode::kDataLoss)) return std::nullopt;
  FailureNotice notice;
  notice.origin = static_cast<int32_t>(image.origin);
  notice.code = static_cast<ErrorCode>(image.code);
  notice.sent_exchanges = image.sent_exchanges;
  notice.reason.assign(image.reason.data(), image.reason_bytes);
  return notice;
}

}  // namespace jax_fabric::moe
