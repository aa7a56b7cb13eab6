#include "csrc/base/byte_writer.h"

#include <xxhash.h>

namespace jax_fabric {

void ByteWriter::Integer(uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void ByteWriter::Raw(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }

void ByteWriter::ByteString(std::span<const std::byte> bytes) {
  U32(static_cast<uint32_t>(bytes.size()));
  Raw(bytes);
}

void ByteWriter::String(std::string_view text) { ByteString(std::as_bytes(std::span(text.data(), text.size()))); }

std::vector<std::byte> SealFrame(uint32_t magic, uint16_t version, std::span<const std::byte> payload) {
  ByteWriter frame;
  frame.U32(magic);
  frame.U16(version);
  frame.U16(0);
  frame.ByteString(payload);
  frame.U64(XXH3_64bits(frame.bytes().data(), frame.bytes().size()));
  return std::move(frame).Take();
}

}  // namespace jax_fabric
