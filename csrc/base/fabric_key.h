// FabricKey: what a process proves its knowledge of the fabric's secret with. One key for each purpose is derived from
// the secret, so that a tag made for one says nothing in another.
#ifndef JAX_FABRIC_BASE_FABRIC_KEY_H_
#define JAX_FABRIC_BASE_FABRIC_KEY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "csrc/base/secret.h"
#include "csrc/base/status.h"

namespace jax_fabric {

// Thread-safe: nothing changes once it is made.
class FabricKey {
 public:
  enum class Purpose : uint8_t { kPeerAddress, kMessage, kHandOver, kIntroduction, kHandshake };
  static constexpr size_t kMinTagBytes = 16;
  static constexpr size_t kMaxTagBytes = 64;

  static Result<std::shared_ptr<const FabricKey>> Create(const Secret& secret);
  FabricKey(const FabricKey&) = delete;
  FabricKey& operator=(const FabricKey&) = delete;
  ~FabricKey();

  // Fills the tag, of kMinTagBytes to kMaxTagBytes: a keyed BLAKE2b hash of `data`. Allocates nothing.
  void Sign(Purpose purpose, std::span<const std::byte> data, std::span<std::byte> tag) const;
  // In constant time.
  bool Verify(Purpose purpose, std::span<const std::byte> data, std::span<const std::byte> tag) const;

  // Tells secrets apart in errors and logs, and does not reveal them; never 0.
  uint32_t fingerprint() const { return fingerprint_; }

 private:
  friend bool SameSecret(const FabricKey* a, const FabricKey* b);
  static constexpr size_t kPurposes = 5;
  using Key = std::array<unsigned char, 32>;

  FabricKey() = default;

  std::array<Key, kPurposes> keys_{};
  uint32_t fingerprint_ = 0;
};

// Null is that of a fabric without a secret.
bool SameSecret(const FabricKey* a, const FabricKey* b);

// "fingerprint 3f2a91c0", or "none" for 0.
std::string DescribeSecret(uint32_t fingerprint);
inline std::string DescribeSecret(const FabricKey* key) {
  return DescribeSecret(key == nullptr ? 0 : key->fingerprint());
}

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_FABRIC_KEY_H_
