#include "csrc/engine/write_grant.h"

#include "csrc/base/byte_reader.h"
#include "csrc/base/byte_writer.h"

namespace jax_fabric {
namespace {

constexpr uint32_t kWriteGrantMagic = 0x5257464a;  // "JFWR"
constexpr uint16_t kWriteGrantVersion = 1;

}  // namespace

Bytes WriteGrant::Serialize() const {
  ByteWriter writer;
  writer.U64(id);
  writer.U64(first_open);
  writer.U32(immediate);
  return SealFrame(kWriteGrantMagic, kWriteGrantVersion, writer.bytes());
}

Result<WriteGrant> WriteGrant::Parse(ByteView bytes) {
  JF_ASSIGN_OR_RETURN(const Frame frame, OpenFrame(kWriteGrantMagic, kWriteGrantVersion, bytes, "write grant"));
  ByteReader reader(frame.payload);
  WriteGrant grant;
  JF_ASSIGN_OR_RETURN(grant.id, reader.U64("id"));
  JF_ASSIGN_OR_RETURN(grant.first_open, reader.U64("first open grant"));
  JF_ASSIGN_OR_RETURN(grant.immediate, reader.U32("immediate"));
  if (grant.id == 0 || grant.first_open > grant.id) {
    return MakeError(ErrorCode::kInvalidArgument, "write grant: id {} must not be 0, nor below the first open one, {}",
                     grant.id, grant.first_open);
  }
  return grant;
}

}  // namespace jax_fabric
