// A small MoE program drawn from a seed: ranks, experts, routing, types, hidden size, rounds, layers and channels, and
// how the fabric under it misbehaves. It runs with the real kernels on whole engines over the simulated fabric.
#ifndef JAX_FABRIC_MOE_TESTING_RANDOM_PROGRAM_H_
#define JAX_FABRIC_MOE_TESTING_RANDOM_PROGRAM_H_

#include <cstdint>
#include <string>

#include "csrc/kernels/cpu/kernels_testing.h"
#include "csrc/moe/testing/moe_fabric.h"

namespace jax_fabric::moe::testing {

struct RandomProgram {
  // What goes wrong beyond repair, somewhere in the middle: then calls may end with an error, and all of them do end.
  enum class Fault : uint8_t { kNone, kFailedWrite, kLostPeer, kCutLink };

  kernels::testing::WorldConfig world;
  FabricOptions fabric;
  int32_t layers = 1;
  int32_t channels = 1;
  double submit_probability = 0.1;
  Fault fault = Fault::kNone;

  static RandomProgram Draw(uint64_t seed);
  // Ranks that take part.
  int32_t Present() const;
  std::string Describe() const;
};

struct ProgramOutcome {
  // What went wrong, with the program; empty if nothing did.
  std::string failure;
  uint64_t landed_bytes = 0;
  bool raised = false;  // calls ended with an error, as they should after a fault
};

ProgramOutcome RunProgram(const RandomProgram& program);

}  // namespace jax_fabric::moe::testing

#endif  // JAX_FABRIC_MOE_TESTING_RANDOM_PROGRAM_H_
