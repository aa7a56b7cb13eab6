// What a rank of an expert-parallel context tells every other one before they connect, as bytes for the bootstrap.
#ifndef JAX_FABRIC_MOE_INTRODUCTION_H_
#define JAX_FABRIC_MOE_INTRODUCTION_H_

#include <cstdint>

#include "csrc/base/fabric_key.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric::moe {

struct Introduction {
  uint32_t rank = 0;
  uint64_t process = 0;      // tells it from every other one
  uint64_t config_hash = 0;  // MoeConfig::Hash
  uint64_t incarnation = 0;  // of the context; its messages carry it
  uint32_t first_immediate = 0;
  Bytes address;     // of its group
  Bytes descriptor;  // of the memory that the others write into
  uint32_t membership_epoch = 0;
  Bytes device_memory;  // where it runs on a GPU: what peers need to reach its memory there; else empty
  uint64_t node = 0;    // NodeNumber; 0: it has not said
  Bytes notices;        // descriptor of its notice boards

  static constexpr size_t kMaxAddressBytes = 1 << 20;
  static constexpr size_t kMaxDescriptorBytes = 1 << 20;
  static constexpr size_t kMaxDeviceMemoryBytes = 1 << 12;

  // With a key it contains the proof that whoever made it knows the fabric's secret.
  Bytes Serialize(const FabricKey* key) const;
  // Trusts nothing; fields that newer versions append are ignored.
  static Result<Introduction> Parse(ByteView bytes);
  // Whether it was made with this secret. `bytes` is what this was parsed from.
  Status Authenticate(ByteView bytes, const FabricKey* key) const;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_INTRODUCTION_H_
