#include "csrc/moe/introduction.h"

#include "csrc/base/byte_reader.h"
#include "csrc/base/byte_writer.h"
#include "csrc/base/signed_payload.h"

namespace jax_fabric::moe {
namespace {

constexpr uint32_t kMagic = 0x6a666d69;  // "jfmi"
constexpr uint16_t kVersion = 6;

Result<SignedPayload> Open(ByteView bytes) {
  JF_ASSIGN_OR_RETURN(const Frame frame, OpenFrame(kMagic, kVersion, bytes, "introduction"));
  return SignedPayload::Open(frame.payload);
}

}  // namespace

Bytes Introduction::Serialize(const FabricKey* key) const {
  ByteWriter writer;
  writer.U32(rank);
  writer.U64(process);
  writer.U64(config_hash);
  writer.U64(incarnation);
  writer.U32(first_immediate);
  writer.ByteString(address);
  writer.ByteString(descriptor);
  writer.U32(membership_epoch);
  writer.ByteString(device_memory);
  writer.U64(node);
  writer.ByteString(notices);
  return SealFrame(kMagic, kVersion, SignedPayload::Seal(key, FabricKey::Purpose::kIntroduction, writer.bytes()));
}

Result<Introduction> Introduction::Parse(ByteView bytes) {
  JF_ASSIGN_OR_RETURN(const SignedPayload payload, Open(bytes));
  ByteReader reader(payload.fields);
  Introduction introduction;
  JF_ASSIGN_OR_RETURN(introduction.rank, reader.U32("rank"));
  JF_ASSIGN_OR_RETURN(introduction.process, reader.U64("process"));
  JF_ASSIGN_OR_RETURN(introduction.config_hash, reader.U64("config hash"));
  JF_ASSIGN_OR_RETURN(introduction.incarnation, reader.U64("incarnation"));
  JF_ASSIGN_OR_RETURN(introduction.first_immediate, reader.U32("first immediate"));
  JF_ASSIGN_OR_RETURN(const ByteView address, reader.ByteString(kMaxAddressBytes, "address"));
  introduction.address.assign(address.begin(), address.end());
  JF_ASSIGN_OR_RETURN(const ByteView descriptor, reader.ByteString(kMaxDescriptorBytes, "descriptor"));
  introduction.descriptor.assign(descriptor.begin(), descriptor.end());
  JF_ASSIGN_OR_RETURN(introduction.membership_epoch, reader.U32("membership epoch"));
  JF_ASSIGN_OR_RETURN(const ByteView device_memory, reader.ByteString(kMaxDeviceMemoryBytes, "device memory"));
  introduction.device_memory.assign(device_memory.begin(), device_memory.end());
  JF_ASSIGN_OR_RETURN(introduction.node, reader.U64("node"));
  JF_ASSIGN_OR_RETURN(const ByteView notices, reader.ByteString(kMaxDescriptorBytes, "descriptor of notices"));
  introduction.notices.assign(notices.begin(), notices.end());
  return introduction;
}

Status Introduction::Authenticate(ByteView bytes, const FabricKey* key) const {
  if (key == nullptr) return {};
  JF_ASSIGN_OR_RETURN(const SignedPayload payload, Open(bytes));
  if (payload.IsSignedWith(*key, FabricKey::Purpose::kIntroduction)) return {};
  return MakeError(ErrorCode::kPermissionDenied,
                   "introductions[{}] was not made with this fabric's secret: it was changed or forged on the way",
                   rank);
}

}  // namespace jax_fabric::moe
