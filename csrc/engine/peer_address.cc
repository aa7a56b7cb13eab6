#include "csrc/engine/peer_address.h"

#include <utility>

#include "csrc/base/byte_reader.h"
#include "csrc/base/byte_writer.h"
#include "csrc/base/signed_payload.h"
#include "csrc/engine/memory.h"

namespace jax_fabric {
namespace {

constexpr uint32_t kAddressMagic = 0x4441464a;  // "JFAD"
constexpr std::string_view kWhat = "peer address";

constexpr std::string_view kSameSecret =
    "give every process the same secret (argument secret=, or JAX_FABRIC_SECRET_FILE)";

}  // namespace

Bytes PeerAddress::Serialize(const FabricKey* key) const {
  ByteWriter writer;
  writer.U32(key == nullptr ? 0 : key->fingerprint());
  writer.String(name);
  writer.U8(static_cast<uint8_t>(kind));
  writer.U64(incarnation);
  writer.U64(max_write_bytes);
  writer.U64(max_message_bytes);
  writer.U8(static_cast<uint8_t>(nics.size()));
  for (const Bytes& nic : nics) writer.ByteString(nic);
  return SealFrame(kAddressMagic, kProtocolVersion,
                   SignedPayload::Seal(key, FabricKey::Purpose::kPeerAddress, writer.bytes()));
}

Result<PeerAddress> PeerAddress::Parse(ByteView bytes) {
  JF_ASSIGN_OR_RETURN(const Frame frame, OpenFrame(kAddressMagic, kProtocolVersion, bytes, kWhat));
  if (frame.version != kProtocolVersion) {
    return MakeError(ErrorCode::kFailedPrecondition,
                     "peer address: protocol version {} where this process speaks {}; install the same version of "
                     "jax_fabric everywhere",
                     frame.version, kProtocolVersion);
  }
  JF_ASSIGN_OR_RETURN(const SignedPayload payload, SignedPayload::Open(frame.payload));
  ByteReader reader(payload.fields);
  PeerAddress address;
  JF_ASSIGN_OR_RETURN(address.secret_fingerprint, reader.U32("secret fingerprint"));
  JF_ASSIGN_OR_RETURN(address.name, reader.String(kMaxNameBytes, "name"));
  JF_ASSIGN_OR_RETURN(const uint8_t kind, reader.U8("domain kind"));
  address.kind = static_cast<DomainKind>(kind);
  JF_ASSIGN_OR_RETURN(address.incarnation, reader.U64("incarnation"));
  JF_ASSIGN_OR_RETURN(address.max_write_bytes, reader.U64("max_write_bytes"));
  JF_ASSIGN_OR_RETURN(address.max_message_bytes, reader.U64("max_message_bytes"));
  JF_ASSIGN_OR_RETURN(const uint8_t nic_count, reader.U8("NIC count"));
  if (nic_count == 0 || nic_count > kMaxNics) {
    return MakeError(ErrorCode::kInvalidArgument, "peer address: {} NICs; 1 to {} are possible", nic_count, kMaxNics);
  }
  if (address.incarnation == 0 || address.max_write_bytes == 0) {
    return MakeError(ErrorCode::kInvalidArgument, "peer address: incarnation {} and max_write_bytes {} must not be 0",
                     address.incarnation, address.max_write_bytes);
  }
  for (uint8_t i = 0; i < nic_count; ++i) {
    JF_ASSIGN_OR_RETURN(const ByteView nic, reader.ByteString(kMaxNicAddressBytes, "NIC address"));
    address.nics.emplace_back(nic.begin(), nic.end());
  }
  return address;
}

Status PeerAddress::Authenticate(ByteView bytes, const FabricKey* key) const {
  if (secret_fingerprint != (key == nullptr ? 0 : key->fingerprint())) {
    return MakeError(ErrorCode::kPermissionDenied, "it has another secret than this process (there: {}; here: {}); {}",
                     DescribeSecret(secret_fingerprint), DescribeSecret(key), kSameSecret);
  }
  if (key == nullptr) return {};
  JF_ASSIGN_OR_RETURN(const Frame frame, OpenFrame(kAddressMagic, kProtocolVersion, bytes, kWhat));
  JF_ASSIGN_OR_RETURN(const SignedPayload payload, SignedPayload::Open(frame.payload));
  if (payload.IsSignedWith(*key, FabricKey::Purpose::kPeerAddress)) return {};
  return MakeError(ErrorCode::kPermissionDenied,
                   "its address was not made with the secret that it names (here: {}): somebody has changed or forged "
                   "it on the way",
                   DescribeSecret(key));
}

}  // namespace jax_fabric
