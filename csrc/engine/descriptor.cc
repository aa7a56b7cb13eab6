#include "csrc/engine/descriptor.h"

#include "csrc/base/byte_reader.h"
#include "csrc/base/byte_writer.h"

namespace jax_fabric {
namespace {

constexpr uint32_t kDescriptorMagic = 0x4d52464a;  // "JFRM"
constexpr uint16_t kDescriptorVersion = 1;

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
  return memory;
}

}  // namespace jax_fabric
