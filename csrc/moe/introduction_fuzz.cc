// Without the secret nobody makes an introduction that is believed.
#include <string_view>

#include "csrc/fuzz/fuzz_input.h"
#include "csrc/moe/introduction.h"

using jax_fabric::Bytes;
using jax_fabric::FabricKey;
using jax_fabric::Secret;
using jax_fabric::fuzz::Require;
using jax_fabric::moe::Introduction;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto key = [] {
    constexpr std::string_view kSecret = "that the fuzzer does not know";
    return FabricKey::Create(Secret::From(std::as_bytes(std::span(kSecret))).value()).value();
  }();
  static const Bytes example = [] {
    Introduction introduction;
    introduction.rank = 1;
    introduction.address = Bytes(3);
    introduction.descriptor = Bytes(4);
    return introduction.Serialize(key.get());
  }();
  const Bytes bytes = jax_fabric::fuzz::FrameOf({data, size}, example);
  const auto parsed = Introduction::Parse(bytes);
  if (!parsed.has_value()) return 0;
  Require(!parsed->Authenticate(bytes, key.get()).has_value() || bytes == example, "forged introductions are refused");
  const Bytes again = parsed->Serialize(key.get());
  const auto reparsed = Introduction::Parse(again);
  Require(reparsed.has_value() && reparsed->Serialize(key.get()) == again, "what is written is read");
  Require(reparsed->Authenticate(again, key.get()).has_value(), "who knows the secret is believed");
  return 0;
}
