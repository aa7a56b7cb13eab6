// What the model of MoE exchanges is told: sizes, protocol, and how fast a NIC and the kernels are. All times are
// figures of somebody (jax_fabric/simulate/constants.py says whose); nothing here is measured.
#ifndef JAX_FABRIC_MOE_MODEL_MODEL_OPTIONS_H_
#define JAX_FABRIC_MOE_MODEL_MODEL_OPTIONS_H_

#include <cstdint>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/domains/simulated/simulation_options.h"
#include "csrc/moe/moe_config.h"

namespace jax_fabric::moe::model {

enum class Protocol : uint8_t {
  kChannel,   // this library: its channels, contexts and engines, as they are
  kRounds,    // the same messages, posted by a program: without announcements, and for more ranks than fit into memory
  kTwoPhases  // the one of the paper: counts and the first private_tokens rows for each rank, then the others
};

struct KernelTimes {
  int64_t launch_ns = 0;  // part of every send kernel, whatever it moves
  int64_t dispatch_send_ns = 0;
  int64_t dispatch_receive_ns = 0;
  int64_t combine_send_ns = 0;
  int64_t combine_receive_ns = 0;
  int64_t host_ns = 0;  // from a kernel's word to the first request on the NIC
};

struct ModelOptions {
  Protocol protocol = Protocol::kChannel;
  int32_t ranks = 16;
  // Ranks that are run; each of the others is as one of them. 0: all. Not of kChannel.
  int32_t representatives = 0;
  int32_t node_ranks = 8;  // reach each other without the NIC
  int32_t experts = 256;
  int32_t top_k = 8;
  int32_t tokens = 128;  // of each rank
  int32_t hidden = 7168;
  int32_t private_tokens = INT32_MAX;
  int32_t calls = 3;  // dispatch and combine, each with another routing
  uint64_t seed = 1;
  int64_t between_ns = 15'000;  // from the end of a call on a rank to its launch of the next one
  simulated::NicModel nic;
  KernelTimes kernels;

  Status Validate() const;
  // Rows are float8_e4m3fn with scales on their way to the experts, and bfloat16 on their way back.
  MoeConfig Config() const;
  int32_t Run() const { return representatives == 0 ? ranks : representatives; }
  bool SameNode(int32_t a, int32_t b) const { return a / node_ranks == b / node_ranks; }
};

// Of every call, for every rank that was run: from the launch to the end of the receive kernel.
struct ModelTimes {
  std::vector<double> dispatch_us;
  std::vector<double> combine_us;
  uint64_t writes = 0;      // of one rank in one dispatch and combine, on average
  uint64_t wire_bytes = 0;  // likewise
};

// Runs it on a virtual clock. kInvalidArgument names what cannot be; kDeadlineExceeded: the program got stuck.
Result<ModelTimes> RunModel(const ModelOptions& options);

}  // namespace jax_fabric::moe::model

#endif  // JAX_FABRIC_MOE_MODEL_MODEL_OPTIONS_H_
