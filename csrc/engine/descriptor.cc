#include "csrc/engine/descriptor.h"

#include <memory>
#include <utility>

#include "csrc/base/byte_reader.h"
#include "csrc/base/byte_writer.h"

namespace jax_fabric {
namespace {

constexpr uint32_t kDescriptorMagic = 0x4d52464a;  // "JFRM"
constexpr uint16_t kDescriptorVersion = 1;

void WritePieces(ByteWriter& writer, const RemoteMemory::Pieces& pieces) {
  writer.U64(pieces.stride);
  writer.U64(pieces.offset);
  writer.U32(static_cast<uint32_t>(pieces.nics.size()));
  for (const RemoteMemory::Nic& nic : pieces.nics) {
    writer.U64(nic.remote_address);
    writer.U64(nic.remote_key);
  }
}

Result<RemoteMemory::Pieces> ReadPieces(ByteReader& reader, uint64_t length, size_t nic_count) {
  RemoteMemory::Pieces pieces;
  JF_ASSIGN_OR_RETURN(pieces.stride, reader.U64("stride of pieces"));
  JF_ASSIGN_OR_RETURN(pieces.offset, reader.U64("offset in the first piece"));
  JF_ASSIGN_OR_RETURN(const uint32_t entries, reader.U32("pieces of all NICs"));
  const uint64_t count = entries / nic_count;
  // Offsets must neither overflow nor leave pieces that nothing lies in.
  const bool fits = pieces.offset < pieces.stride && length <= ~pieces.offset && count >= 2 &&
                    (pieces.offset + length - 1) / pieces.stride >= count - 1;
  if (entries % nic_count != 0 || count > PieceLayout::kMaxPieces || length == 0 || !fits) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "memory descriptor: {} bytes from {} on, in {} pieces of {} NICs, one every {} bytes: that cannot "
                     "be",
                     length, pieces.offset, entries, nic_count, pieces.stride);
  }
  for (uint32_t i = 0; i < entries; ++i) {
    RemoteMemory::Nic nic{};
    JF_ASSIGN_OR_RETURN(nic.remote_address, reader.U64("remote address of a piece"));
    JF_ASSIGN_OR_RETURN(nic.remote_key, reader.U64("remote key of a piece"));
    pieces.nics.push_back(nic);
  }
  return pieces;
}

}  // namespace

Bytes SerializeDescriptor(const RemoteMemory& memory) {
  ByteWriter writer;
  writer.U64(memory.incarnation);
  writer.U64(memory.length);
  writer.U8(static_cast<uint8_t>(memory.nics.size()));
  for (const RemoteMemory::Nic& nic : memory.nics) {
    writer.U64(nic.remote_address);
    writer.U64(nic.remote_key);
  }
  if (memory.pieces != nullptr) WritePieces(writer, *memory.pieces);
  return SealFrame(kDescriptorMagic, kDescriptorVersion, writer.bytes());
}

Result<RemoteMemory> ParseDescriptor(ByteView bytes) {
  JF_ASSIGN_OR_RETURN(const Frame frame, OpenFrame(kDescriptorMagic, kDescriptorVersion, bytes, "memory descriptor"));
  ByteReader reader(frame.payload);
  RemoteMemory memory;
  JF_ASSIGN_OR_RETURN(memory.incarnation, reader.U64("incarnation"));
  JF_ASSIGN_OR_RETURN(memory.length, reader.U64("length"));
  JF_ASSIGN_OR_RETURN(const uint8_t nic_count, reader.U8("NIC count"));
  if (nic_count == 0 || nic_count > kMaxNics) {
    return MakeError(ErrorCode::kInvalidArgument, "memory descriptor: {} NICs; 1 to {} are possible", nic_count,
                     kMaxNics);
  }
  for (uint8_t i = 0; i < nic_count; ++i) {
    RemoteMemory::Nic nic{};
    JF_ASSIGN_OR_RETURN(nic.remote_address, reader.U64("remote address"));
    JF_ASSIGN_OR_RETURN(nic.remote_key, reader.U64("remote key"));
    memory.nics.push_back(nic);
  }
  if (reader.remaining() > 0) {
    JF_ASSIGN_OR_RETURN(RemoteMemory::Pieces pieces, ReadPieces(reader, memory.length, nic_count));
    memory.pieces = std::make_shared<const RemoteMemory::Pieces>(std::move(pieces));
  }
  return memory;
}

}  // namespace jax_fabric
