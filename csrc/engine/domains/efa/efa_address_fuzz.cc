#include "csrc/engine/domains/efa/efa_address.h"
#include "csrc/fuzz/fuzz_input.h"

using jax_fabric::Bytes;
using jax_fabric::efa::EfaAddress;
using jax_fabric::fuzz::Require;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Bytes example = EfaAddress().Seal();
  const Bytes bytes = jax_fabric::fuzz::FrameOf({data, size}, example);
  const auto opened = EfaAddress::Open(bytes);
  if (!opened.has_value()) return 0;
  Require(!opened->name.empty() && opened->message_credits > 0, "an address names an endpoint that takes messages");
  Require(opened->Seal() == bytes, "what is written is read");
  return 0;
}
