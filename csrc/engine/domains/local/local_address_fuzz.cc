#include "csrc/engine/domains/local/local_address.h"
#include "csrc/fuzz/fuzz_input.h"

using jax_fabric::Bytes;
using jax_fabric::fuzz::Require;
using jax_fabric::local::LocalAddress;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Bytes example = LocalAddress().Seal();
  const Bytes bytes = jax_fabric::fuzz::FrameOf({data, size}, example);
  const auto opened = LocalAddress::Open(bytes);
  if (!opened.has_value()) return 0;
  Require(opened->Seal() == bytes, "what is written is read");
  return 0;
}
