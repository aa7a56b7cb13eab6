// The reading half of everything on the wire. Nothing is believed: every read is checked against what is left,
// every length against a maximum, and a failed read says which field, where, and how much was missing.
#ifndef JAX_FABRIC_BASE_BYTE_READER_H_
#define JAX_FABRIC_BASE_BYTE_READER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "csrc/base/status.h"

namespace jax_fabric {

// A view: the bytes must outlive it and everything that Raw and ByteString return.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // `field` names the value in errors.
  Result<uint8_t> U8(std::string_view field);
  Result<uint16_t> U16(std::string_view field);
  Result<uint32_t> U32(std::string_view field);
  Result<uint64_t> U64(std::string_view field);
  // One byte; the enumerators are 1 to `last`.
  template <typename Enum>
  Result<Enum> Enumerator(Enum last, std::string_view field) {
    JF_ASSIGN_OR_RETURN(const uint8_t value, U8(field));
    if (value >= 1 && value <= static_cast<uint8_t>(last)) return static_cast<Enum>(value);
    return MakeError(ErrorCode::kInvalidArgument, "'{}' is {}: unknown to this jax_fabric", field, value);
  }

  Result<std::span<const std::byte>> Raw(size_t count, std::string_view field);
  // A 32-bit count and that many bytes; more than `max_bytes` is refused.
  Result<std::span<const std::byte>> ByteString(size_t max_bytes, std::string_view field);
  Result<std::string> String(size_t max_bytes, std::string_view field);

  size_t remaining() const { return bytes_.size() - offset_; }
  // Fails when something is left. Formats that let newer versions append fields do not call it.
  Status End(std::string_view what) const;

 private:
  Result<uint64_t> Integer(size_t size, std::string_view field);

  std::span<const std::byte> bytes_;
  size_t offset_ = 0;
};

struct Frame {
  uint16_t version = 0;
  std::span<const std::byte> payload;  // view into what was opened
};

// Opens what SealFrame made. Refuses bytes that are empty, truncated, too long, of another kind, damaged, or of a
// version above `max_version`. `what` names the blob in errors: "peer address", "memory descriptor".
Result<Frame> OpenFrame(uint32_t magic, uint16_t max_version, std::span<const std::byte> bytes, std::string_view what);

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_BYTE_READER_H_
