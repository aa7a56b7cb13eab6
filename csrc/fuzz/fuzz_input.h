// What fuzz targets take their input apart with.
#ifndef JAX_FABRIC_FUZZ_FUZZ_INPUT_H_
#define JAX_FABRIC_FUZZ_FUZZ_INPUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "csrc/base/byte_writer.h"

namespace jax_fabric::fuzz {

using ByteView = std::span<const std::byte>;

// Hands out bytes of the input, then zeros.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : left_(reinterpret_cast<const std::byte*>(data), size) {}

  bool done() const { return left_.empty(); }
  uint8_t Byte() { return static_cast<uint8_t>(Bytes(1)[0]); }
  // All that is left.
  ByteView Rest() { return std::exchange(left_, {}); }
  std::vector<std::byte> Bytes(size_t count) {
    std::vector<std::byte> bytes(count);
    const size_t there = std::min(count, left_.size());
    std::copy_n(left_.begin(), there, bytes.begin());
    left_ = left_.subspan(there);
    return bytes;
  }

 private:
  ByteView left_;
};

// A finding: what must never be, is.
inline void Require(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "fuzz: it does not hold that %s\n", what);
  std::abort();
}

// The payload in a frame of the same kind and version as the example, so that it is not the checksum that refuses it.
inline std::vector<std::byte> SealLike(ByteView example, ByteView payload) {
  uint32_t magic = 0;
  uint16_t version = 0;
  std::memcpy(&magic, example.data(), sizeof(magic));
  std::memcpy(&version, example.data() + sizeof(magic), sizeof(version));
  return SealFrame(magic, version, payload);
}

// An input either is the bytes as they come from the wire, or a payload whose frame is right; its first byte says
// which.
inline std::vector<std::byte> FrameOf(FuzzInput input, ByteView example) {
  const bool raw = input.Byte() % 8 == 0;
  const ByteView rest = input.Rest();
  return raw ? std::vector<std::byte>(rest.begin(), rest.end()) : SealLike(example, rest);
}

}  // namespace jax_fabric::fuzz

#endif  // JAX_FABRIC_FUZZ_FUZZ_INPUT_H_
