#include "csrc/base/fabric_key.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>

namespace jax_fabric {
namespace {

constexpr char kContext[crypto_kdf_CONTEXTBYTES + 1] = "jaxfabri";
constexpr uint64_t kFingerprintId = 1000;

const unsigned char* Raw(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

}  // namespace

static_assert(FabricKey::kMinTagBytes == crypto_generichash_BYTES_MIN);
static_assert(FabricKey::kMaxTagBytes == crypto_generichash_BYTES_MAX);
static_assert(crypto_kdf_KEYBYTES == 32 && crypto_generichash_KEYBYTES == 32);

Result<std::shared_ptr<const FabricKey>> FabricKey::Create(const Secret& secret) {
  if (sodium_init() < 0) return MakeError(ErrorCode::kInternal, "libsodium cannot be initialised");
  std::shared_ptr<FabricKey> result(new FabricKey());
  Key master;
  crypto_generichash(master.data(), master.size(), Raw(secret.bytes().data()), secret.bytes().size(), nullptr, 0);
  for (size_t purpose = 0; purpose < kPurposes; ++purpose) {
    Key& key = result->keys_[purpose];
    crypto_kdf_derive_from_key(key.data(), key.size(), purpose + 1, kContext, master.data());
  }
  std::array<unsigned char, crypto_kdf_BYTES_MIN> print;
  crypto_kdf_derive_from_key(print.data(), print.size(), kFingerprintId, kContext, master.data());
  std::memcpy(&result->fingerprint_, print.data(), sizeof(fingerprint_));
  result->fingerprint_ = std::max(result->fingerprint_, 1u);
  sodium_memzero(master.data(), master.size());
  return result;
}

FabricKey::~FabricKey() { sodium_memzero(keys_.data(), sizeof(keys_)); }

void FabricKey::Sign(Purpose purpose, std::span<const std::byte> data, std::span<std::byte> tag) const {
  const Key& key = keys_[static_cast<size_t>(purpose)];
  // Fails for impossible lengths of tag and key only.
  crypto_generichash(reinterpret_cast<unsigned char*>(tag.data()), tag.size(), Raw(data.data()), data.size(),
                     key.data(), key.size());
}

bool FabricKey::Verify(Purpose purpose, std::span<const std::byte> data, std::span<const std::byte> tag) const {
  if (tag.size() < kMinTagBytes || tag.size() > kMaxTagBytes) return false;
  std::array<std::byte, kMaxTagBytes> expected;
  Sign(purpose, data, std::span(expected).first(tag.size()));
  return sodium_memcmp(expected.data(), tag.data(), tag.size()) == 0;
}

bool SameSecret(const FabricKey* a, const FabricKey* b) {
  if (a == nullptr || b == nullptr) return a == b;
  return sodium_memcmp(a->keys_.data(), b->keys_.data(), sizeof(a->keys_)) == 0;
}

std::string DescribeSecret(uint32_t fingerprint) {
  return fingerprint == 0 ? "none" : fmt::format("fingerprint {:08x}", fingerprint);
}

}  // namespace jax_fabric
