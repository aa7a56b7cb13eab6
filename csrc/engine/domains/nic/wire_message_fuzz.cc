// What NIC domains send each other, as it comes and with a tag that is right.
#include <string_view>

#include "csrc/engine/domains/nic/wire_message.h"
#include "csrc/fuzz/fuzz_input.h"

using jax_fabric::Bytes;
using jax_fabric::FabricKey;
using jax_fabric::Secret;
using jax_fabric::fuzz::FuzzInput;
using jax_fabric::fuzz::Require;
using jax_fabric::nic::WireMessage;

namespace {

Bytes Written(const WireMessage& message, const FabricKey* key) {
  Bytes bytes(WireMessage::kOverhead + message.payload.size());
  bytes.resize(message.Write(bytes, key));
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto key = [] {
    constexpr std::string_view kSecret = "that the fuzzer does not know";
    return FabricKey::Create(Secret::From(std::as_bytes(std::span(kSecret))).value()).value();
  }();
  FuzzInput input(data, size);
  const uint8_t changed = input.Byte();
  const auto rest = input.Rest();
  const Bytes raw(rest.begin(), rest.end());

  const auto forged = WireMessage::Read(raw, key.get());
  Require(!forged.has_value() || forged->kind == WireMessage::Kind::kUser, "what comes without the secret is refused");
  const auto message = WireMessage::Read(raw, nullptr);
  if (!message.has_value()) return 0;
  Require(Written(*message, nullptr) == raw, "what is written is read");

  Bytes genuine = Written(*message, key.get());
  const auto read = WireMessage::Read(genuine, key.get());
  Require(read.has_value() && Written(*read, nullptr) == raw, "a tag changes nothing");
  if (message->kind == WireMessage::Kind::kUser) return 0;
  genuine[changed * genuine.size() / 256] ^= std::byte{1};  // which makes no other kind to a user's
  Require(!WireMessage::Read(genuine, key.get()).has_value(), "every byte counts");
  return 0;
}
