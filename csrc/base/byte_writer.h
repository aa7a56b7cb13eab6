// The writing half of everything on the wire: little-endian integers, length-prefixed byte strings, and the
// frame that closes them. See byte_reader.h for the other half.
#ifndef JAX_FABRIC_BASE_BYTE_WRITER_H_
#define JAX_FABRIC_BASE_BYTE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace jax_fabric {

class ByteWriter {
 public:
  void U8(uint8_t value) { Integer(value, 1); }
  void U16(uint16_t value) { Integer(value, 2); }
  void U32(uint32_t value) { Integer(value, 4); }
  void U64(uint64_t value) { Integer(value, 8); }

  // As they are; the reader must know the count.
  void Raw(std::span<const std::byte> bytes);
  // A 32-bit count and the bytes. Whoever writes keeps to the maximum that the reader will insist on.
  void ByteString(std::span<const std::byte> bytes);
  void String(std::string_view text);

  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<std::byte> Take() && { return std::move(bytes_); }

 private:
  void Integer(uint64_t value, int size);

  std::vector<std::byte> bytes_;
};

// Frame: magic u32, version u16, reserved u16 (0), payload length u32, payload, XXH3-64 of all that comes before.
// This layout never changes, so that a newer version can be told from damage. Payloads are at most 4 GiB - 1.
inline constexpr size_t kFrameOverhead = 4 + 2 + 2 + 4 + 8;

// A payload inside a frame. `magic` says which kind of blob it is (a descriptor, an address, ...).
std::vector<std::byte> SealFrame(uint32_t magic, uint16_t version, std::span<const std::byte> payload);

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_BYTE_WRITER_H_
