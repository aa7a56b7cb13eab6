// Without the secret nobody makes an address that is believed.
#include <string_view>

#include "csrc/engine/peer_address.h"
#include "csrc/fuzz/fuzz_input.h"

using jax_fabric::Bytes;
using jax_fabric::FabricKey;
using jax_fabric::PeerAddress;
using jax_fabric::Secret;
using jax_fabric::fuzz::Require;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto key = [] {
    constexpr std::string_view kSecret = "that the fuzzer does not know";
    return FabricKey::Create(Secret::From(std::as_bytes(std::span(kSecret))).value()).value();
  }();
  static const Bytes example = [] {
    PeerAddress address;
    address.name = "peer";
    address.incarnation = 1;
    address.max_write_bytes = 2;
    address.nics = {Bytes(3)};
    return address.Serialize(key.get());
  }();
  const Bytes bytes = jax_fabric::fuzz::FrameOf({data, size}, example);
  const auto parsed = PeerAddress::Parse(bytes);
  if (!parsed.has_value()) return 0;
  Require(!parsed->Authenticate(bytes, key.get()).has_value() || bytes == example, "forged addresses are refused");
  Require(parsed->Authenticate(bytes, nullptr).has_value() == (parsed->secret_fingerprint == 0),
          "without a secret only such addresses are accepted");
  Require(parsed->name.size() <= PeerAddress::kMaxNameBytes, "names are bounded");
  const auto reparsed = PeerAddress::Parse(parsed->Serialize());
  Require(reparsed.has_value() && reparsed->Serialize() == parsed->Serialize(), "what is written is read");
  return 0;
}
