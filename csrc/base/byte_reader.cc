#include "csrc/base/byte_reader.h"

#include <xxhash.h>

#include "csrc/base/byte_writer.h"

namespace jax_fabric {

Result<uint64_t> ByteReader::Integer(size_t size, std::string_view field) {
  JF_ASSIGN_OR_RETURN(const auto bytes, Raw(size, field));
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

Result<uint8_t> ByteReader::U8(std::string_view field) {
  JF_ASSIGN_OR_RETURN(const uint64_t value, Integer(1, field));
  return static_cast<uint8_t>(value);
}

Result<uint16_t> ByteReader::U16(std::string_view field) {
  JF_ASSIGN_OR_RETURN(const uint64_t value, Integer(2, field));
  return static_cast<uint16_t>(value);
}

Result<uint32_t> ByteReader::U32(std::string_view field) {
  JF_ASSIGN_OR_RETURN(const uint64_t value, Integer(4, field));
  return static_cast<uint32_t>(value);
}

Result<uint64_t> ByteReader::U64(std::string_view field) { return Integer(8, field); }

Result<std::span<const std::byte>> ByteReader::Raw(size_t count, std::string_view field) {
  if (count > remaining()) {
    return MakeError(ErrorCode::kDataLoss, "truncated at '{}': {} bytes wanted at offset {}, {} left", field, count,
                     offset_, remaining());
  }
  const auto bytes = bytes_.subspan(offset_, count);
  offset_ += count;
  return bytes;
}

Result<std::span<const std::byte>> ByteReader::ByteString(size_t max_bytes, std::string_view field) {
  JF_ASSIGN_OR_RETURN(const uint32_t count, U32(field));
  if (count > max_bytes) {
    return MakeError(ErrorCode::kDataLoss, "'{}' says it has {} bytes, at most {} are allowed", field, count,
                     max_bytes);
  }
  return Raw(count, field);
}

Result<std::string> ByteReader::String(size_t max_bytes, std::string_view field) {
  JF_ASSIGN_OR_RETURN(const auto bytes, ByteString(max_bytes, field));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Status ByteReader::End(std::string_view what) const {
  if (remaining() == 0) return {};
  return MakeError(ErrorCode::kDataLoss, "{} has {} bytes too many", what, remaining());
}

Result<Frame> OpenFrame(uint32_t magic, uint16_t max_version, std::span<const std::byte> bytes, std::string_view what) {
  if (bytes.empty()) return MakeError(ErrorCode::kDataLoss, "{} is empty", what);
  if (bytes.size() < kFrameOverhead) {
    return MakeError(ErrorCode::kDataLoss, "{} is truncated: {} bytes, the frame alone has {}", what, bytes.size(),
                     kFrameOverhead);
  }
  ByteReader reader(bytes);
  JF_ASSIGN_OR_RETURN(const uint32_t seen_magic, reader.U32("magic"));
  if (seen_magic != magic) {
    return MakeError(ErrorCode::kInvalidArgument, "{} starts with {:#010x} instead of {:#010x}: not such a blob", what,
                     seen_magic, magic);
  }
  Frame frame;
  JF_ASSIGN_OR_RETURN(frame.version, reader.U16("version"));
  JF_RETURN_IF_ERROR(reader.U16("reserved"));
  JF_ASSIGN_OR_RETURN(const uint32_t length, reader.U32("payload length"));
  if (length != bytes.size() - kFrameOverhead) {
    return MakeError(ErrorCode::kDataLoss, "{} is {}: it says {} payload bytes and has {}", what,
                     length > bytes.size() - kFrameOverhead ? "truncated" : "too long", length,
                     bytes.size() - kFrameOverhead);
  }
  JF_ASSIGN_OR_RETURN(frame.payload, reader.Raw(length, "payload"));
  const uint64_t expected = XXH3_64bits(bytes.data(), bytes.size() - 8);
  JF_ASSIGN_OR_RETURN(const uint64_t checksum, reader.U64("checksum"));
  if (checksum != expected) {
    return MakeError(ErrorCode::kDataLoss, "{} is damaged: checksum {:016x}, expected {:016x}", what, checksum,
                     expected);
  }
  if (frame.version > max_version) {
    return MakeError(ErrorCode::kFailedPrecondition,
                     "{} has version {}, this jax_fabric reads up to {}: use the same jax_fabric on both sides", what,
                     frame.version, max_version);
  }
  return frame;
}

}  // namespace jax_fabric
