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
// Both halves of a long range at once keep more of the memory busy: faster for pages of 16 KiB and more beyond the
// cache (bench transfer shows the rate), slower for 4 KiB; four quarters at once are slower than memcpy.
constexpr uint64_t kTwoHalvesBytes = 16 * 1024;
constexpr uint64_t kAheadInHalves = 512;

// The target is aligned to a line.
void StreamLine(std::byte* target, const std::byte* source) {
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

// Prefetching past the end does nothing.
void StreamLines(std::byte* target, const std::byte* source, uint64_t lines) {
  for (; lines > 0; --lines, target += kLine, source += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(source) + kAhead, _MM_HINT_T0);
    StreamLine(target, source);
  }
}

void StreamHalves(std::byte* target, const std::byte* source, uint64_t lines_each) {
  const uint64_t half = lines_each * kLine;
  for (; lines_each > 0; --lines_each, target += kLine, source += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(source) + kAheadInHalves, _MM_HINT_NTA);
    StreamLine(target, source);
    _mm_prefetch(reinterpret_cast<const char*>(source) + half + kAheadInHalves, _MM_HINT_NTA);
    StreamLine(target + half, source + half);
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
  uint64_t done = head;
  if (length - head >= kTwoHalvesBytes) {
    const uint64_t lines_each = (length - head) / kLine / 2;
    StreamHalves(target + done, source + done, lines_each);
    done += 2 * lines_each * kLine;
  }
  const uint64_t lines = (length - done) / kLine;
  StreamLines(target + done, source + done, lines);
  done += lines * kLine;
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
