#include "csrc/engine/descriptor.h"
#include "csrc/fuzz/fuzz_input.h"

using jax_fabric::Bytes;
using jax_fabric::RemoteMemory;
using jax_fabric::fuzz::Require;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Bytes example = jax_fabric::SerializeDescriptor({.length = 1, .nics = {{2, 3}}, .incarnation = 4});
  const Bytes bytes = jax_fabric::fuzz::FrameOf({data, size}, example);
  const auto parsed = jax_fabric::ParseDescriptor(bytes);
  if (!parsed.has_value()) return 0;
  Require(!parsed->nics.empty() && parsed->nics.size() <= jax_fabric::kMaxNics, "a group has 1 to 4 NICs");
  for (const uint64_t offset : {uint64_t{0}, parsed->length / 2, parsed->length}) {
    for (size_t nic = 0; nic < parsed->nics.size(); ++nic) static_cast<void>(parsed->At(offset, nic));
  }
  const Bytes again = jax_fabric::SerializeDescriptor(*parsed);
  Require(again.size() <= bytes.size(), "a descriptor has no more fields than what it was parsed from");
  const auto reparsed = jax_fabric::ParseDescriptor(again);
  Require(reparsed.has_value() && jax_fabric::SerializeDescriptor(*reparsed) == again, "what is written is read");
  return 0;
}
