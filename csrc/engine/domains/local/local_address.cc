#include "csrc/engine/domains/local/local_address.h"

#include "csrc/base/byte_reader.h"
#include "csrc/base/byte_writer.h"

namespace jax_fabric::local {
namespace {

constexpr uint32_t kMagic = 0x414c464a;  // "JFLA"
constexpr uint16_t kVersion = 1;
constexpr size_t kMaxSocketName = 100;  // sun_path has 108 bytes
constexpr std::string_view kWhat = "address of a local domain";

}  // namespace

Bytes LocalAddress::Seal() const {
  ByteWriter writer;
  writer.U32(process.pid);
  writer.U64(process.start_time);
  writer.U64(process.machine);
  writer.U64(process_id);
  writer.U64(incarnation);
  writer.String(socket_name);
  return SealFrame(kMagic, kVersion, writer.bytes());
}

Result<LocalAddress> LocalAddress::Open(ByteView bytes) {
  JF_ASSIGN_OR_RETURN(const Frame frame, OpenFrame(kMagic, kVersion, bytes, kWhat));
  ByteReader reader(frame.payload);
  LocalAddress address;
  JF_ASSIGN_OR_RETURN(address.process.pid, reader.U32("pid"));
  JF_ASSIGN_OR_RETURN(address.process.start_time, reader.U64("start time"));
  JF_ASSIGN_OR_RETURN(address.process.machine, reader.U64("machine"));
  JF_ASSIGN_OR_RETURN(address.process_id, reader.U64("process id"));
  JF_ASSIGN_OR_RETURN(address.incarnation, reader.U64("incarnation"));
  JF_ASSIGN_OR_RETURN(address.socket_name, reader.String(kMaxSocketName, "socket name"));
  JF_RETURN_IF_ERROR(reader.End(kWhat));
  return address;
}

}  // namespace jax_fabric::local
