#include "csrc/engine/domains/nic/wire_message.h"

#include <bit>
#include <cstring>

#include "csrc/base/byte_reader.h"

namespace jax_fabric::nic {
namespace {

constexpr uint32_t kWireMagic = 0x4645464a;  // "JFEF"

static_assert(std::endian::native == std::endian::little, "integers travel as they lie in memory");

template <typename Integer>
std::byte* Put(std::byte* out, Integer value) {
  std::memcpy(out, &value, sizeof(value));
  return out + sizeof(value);
}

}  // namespace

size_t WireMessage::Write(std::span<std::byte> out, const FabricKey* key) const {
  std::byte* at = Put(out.data(), kWireMagic);
  at = Put(at, static_cast<uint8_t>(kind));
  for (const uint64_t field : {from, to, attempt, value, taken}) at = Put(at, field);
  if (!payload.empty()) std::memcpy(at, payload.data(), payload.size());
  size_t size = kHeaderBytes + payload.size();
  if (kind == Kind::kUser || key == nullptr) return size;
  key->Sign(FabricKey::Purpose::kHandshake, out.first(size), out.subspan(size, FabricKey::kMinTagBytes));
  return size + FabricKey::kMinTagBytes;
}

Result<WireMessage> WireMessage::Read(ByteView bytes, const FabricKey* key) {
  ByteReader reader(bytes);
  JF_ASSIGN_OR_RETURN(const uint32_t magic, reader.U32("magic"));
  if (magic != kWireMagic) return MakeError(ErrorCode::kInvalidArgument, "a message that no such domain has sent");
  WireMessage message;
  JF_ASSIGN_OR_RETURN(message.kind, reader.Enumerator(Kind::kUser, "kind"));
  for (uint64_t* field : {&message.from, &message.to, &message.attempt, &message.value, &message.taken}) {
    JF_ASSIGN_OR_RETURN(*field, reader.U64("field"));
  }
  size_t payload = reader.remaining();
  if (message.kind != Kind::kUser && key != nullptr) {
    if (payload < FabricKey::kMinTagBytes ||
        !key->Verify(FabricKey::Purpose::kHandshake, bytes.first(bytes.size() - FabricKey::kMinTagBytes),
                     bytes.last(FabricKey::kMinTagBytes))) {
      return MakeError(ErrorCode::kPermissionDenied, "a message of another fabric: the secrets differ");
    }
    payload -= FabricKey::kMinTagBytes;
  }
  message.payload = bytes.subspan(kHeaderBytes, payload);
  return message;
}

}  // namespace jax_fabric::nic
