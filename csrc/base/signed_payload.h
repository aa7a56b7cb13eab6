// What proves that its writer knows the fabric's secret: a tag, then the fields that it covers, also those that newer
// versions append. In a fabric without a secret the tag is zeros.
#ifndef JAX_FABRIC_BASE_SIGNED_PAYLOAD_H_
#define JAX_FABRIC_BASE_SIGNED_PAYLOAD_H_

#include <cstddef>
#include <span>
#include <vector>

#include "csrc/base/fabric_key.h"
#include "csrc/base/status.h"

namespace jax_fabric {

// A view into what it was opened from.
struct SignedPayload {
  static constexpr size_t kTagBytes = 32;

  std::span<const std::byte> tag;
  std::span<const std::byte> fields;

  // `key`: null in a fabric without a secret.
  static std::vector<std::byte> Seal(const FabricKey* key, FabricKey::Purpose purpose,
                                     std::span<const std::byte> fields);
  // Believes nothing: the fields are those of anybody until IsSignedWith says otherwise.
  static Result<SignedPayload> Open(std::span<const std::byte> payload);
  bool IsSignedWith(const FabricKey& key, FabricKey::Purpose purpose) const { return key.Verify(purpose, fields, tag); }
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_SIGNED_PAYLOAD_H_
