#include "csrc/engine/domains/efa/efa_address.h"

#include "csrc/base/byte_reader.h"
#include "csrc/base/byte_writer.h"

namespace jax_fabric::efa {
namespace {

constexpr uint32_t kAddressMagic = 0x4145464a;  // "JFEA"
constexpr uint16_t kAddressVersion = 1;
constexpr size_t kMaxProvider = 64;
constexpr size_t kMaxName = 512;
constexpr std::string_view kWhat = "address of an efa domain";

}  // namespace

Bytes EfaAddress::Seal() const {
  ByteWriter writer;
  writer.U64(incarnation);
  writer.String(provider);
  writer.ByteString(name);
  writer.U32(message_credits);
  return SealFrame(kAddressMagic, kAddressVersion, writer.bytes());
}

Result<EfaAddress> EfaAddress::Open(ByteView bytes) {
  JF_ASSIGN_OR_RETURN(const Frame frame, OpenFrame(kAddressMagic, kAddressVersion, bytes, kWhat));
  ByteReader reader(frame.payload);
  EfaAddress address;
  JF_ASSIGN_OR_RETURN(address.incarnation, reader.U64("incarnation"));
  JF_ASSIGN_OR_RETURN(address.provider, reader.String(kMaxProvider, "provider"));
  JF_ASSIGN_OR_RETURN(const ByteView name, reader.ByteString(kMaxName, "name"));
  address.name.assign(name.begin(), name.end());
  JF_ASSIGN_OR_RETURN(address.message_credits, reader.U32("message credits"));
  JF_RETURN_IF_ERROR(reader.End(kWhat));
  if (address.name.empty() || address.message_credits == 0) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: it names no endpoint, or takes no messages", kWhat);
  }
  return address;
}

}  // namespace jax_fabric::efa
