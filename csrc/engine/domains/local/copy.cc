#include "csrc/engine/domains/local/copy.h"

#include <cstring>

#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#include <emmintrin.h>
#define JF_LOCAL_STREAMING_COPY 1
#endif

namespace jax_fabric::local {

#ifdef JF_LOCAL_STREAMING_COPY
namespace {

constexpr uint64_t kLine = 64;
// Pages lie anywhere, so the processor's own prefetching starts anew with each: measured over random pages of 4 KiB in
// 8 MiB, 3.3 times memcpy's speed with it and 2 times without.
constexpr uint64_t kAhead = 1024;

// Whole cache lines; the target is aligned to one.
void StreamLines(std::byte* target, const std::byte* source, uint64_t lines) {
  for (; lines > 0; --lines, target += kLine, source += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(source) + kAhead, _MM_HINT_T0);  // past the end it does nothing
    const auto* from = reinterpret_cast<const __m128i*>(source);
    auto* to = reinterpret_cast<__m128i*>(target);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
}

}  // namespace

void StreamBytes(std::byte* target, const std::byte* source, uint64_t length) {
  const uint64_t head = (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine;
  if (length < head + 4 * kLine) {
    std::memcpy(target, source, length);
    return;
  }
  std::memcpy(target, source, head);
  const uint64_t lines = (length - head) / kLine;
  StreamLines(target + head, source + head, lines);
  const uint64_t done = head + lines * kLine;
  std::memcpy(target + done, source + done, length - done);
}

void FinishStreams() { _mm_sfence(); }
#else
void StreamBytes(std::byte* target, const std::byte* source, uint64_t length) { std::memcpy(target, source, length); }

void FinishStreams() {}
#endif

void CopyBytes(std::byte* target, const std::byte* source, uint64_t length, bool streaming) {
  if (streaming) {
    StreamBytes(target, source, length);
    FinishStreams();
  } else if (length > 0) {
    std::memcpy(target, source, length);
  }
}

}  // namespace jax_fabric::local
