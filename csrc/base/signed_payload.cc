#include "csrc/base/signed_payload.h"

#include <algorithm>

#include "csrc/base/byte_reader.h"

namespace jax_fabric {

std::vector<std::byte> SignedPayload::Seal(const FabricKey* key, FabricKey::Purpose purpose,
                                           std::span<const std::byte> fields) {
  std::vector<std::byte> payload(kTagBytes + fields.size());
  std::copy(fields.begin(), fields.end(), payload.begin() + kTagBytes);
  if (key != nullptr) key->Sign(purpose, fields, std::span(payload).first(kTagBytes));
  return payload;
}

Result<SignedPayload> SignedPayload::Open(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  SignedPayload opened;
  JF_ASSIGN_OR_RETURN(opened.tag, reader.Raw(kTagBytes, "authenticator"));
  opened.fields = payload.subspan(kTagBytes);
  return opened;
}

}  // namespace jax_fabric
