// What a simulated NIC is like, and what goes wrong with it.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_SIMULATED_SIMULATION_OPTIONS_H_
#define JAX_FABRIC_ENGINE_DOMAINS_SIMULATED_SIMULATION_OPTIONS_H_

#include <cstdint>
#include <set>
#include <string>

#include "csrc/engine/domain.h"

namespace jax_fabric::simulated {

// How long things take. All times are on the network's clock.
struct NicModel {
  int64_t latency_ns = 1'000;  // of a segment, from port to port
  int64_t jitter_ns = 0;       // more, uniformly drawn for each segment: what permutes
  int64_t post_ns = 0;         // between two requests that leave the NIC
  double bytes_per_ns = 0;     // of the sending and of the receiving port; 0: no limit
  uint64_t segment_bytes = 0;  // payloads travel in pieces of at most so many bytes, in any order; 0: whole
  // Segments of all requests that are posted leave in turn, as from a NIC with a queue for each peer; else one request
  // after the other.
  bool interleaved = false;
  int64_t completion_ns = 0;     // from the last segment's landing to the sender's completion, at most; drawn
  int64_t handshake_ns = 1'000;  // one way of a connection's hello
};

// What goes wrong. May be changed at any time by the thread that drives the domain.
struct SimulatedFaults {
  // --- each of them of every post, segment or write, by the seed
  double again_probability = 0;
  int again_burst = 1;                      // so many posts in a row then get the answer
  double loss_probability = 0;              // of a segment; it is sent again, see below
  double early_completion_probability = 0;  // the sender's success comes long before the payload is there
  double drop_completion_probability = 0;   // the sender never hears; the write takes place
  double handshake_loss_probability = 0;    // of a hello or its answer
  double handshake_double_probability = 0;  // they come twice
  // A failed write's segments that are on their way may land after the sender knows that it has failed.
  double late_landing_probability = 0;

  int64_t retransmit_ns = 20'000;
  int retries = 100;                   // of a segment; then the peer is lost
  int64_t lease_ns = 1'000'000;        // until a dead peer is noticed without a write to it; 0: never
  bool bad_write_breaks_peer = false;  // as a wrong key does on a connection of queue pairs

  // --- by number
  std::set<PeerId> again;        // posts to them are never taken
  std::set<PeerId> silent;       // posts to them are taken and never complete, until the peer is removed
  std::set<PeerId> never_ready;  // they stay kConnecting
  int fail_post = -1;            // counts down with each post taken; the one at 0 completes with fail_code
  ErrorCode fail_code = ErrorCode::kDataLoss;
  int reject_post = -1;  // likewise kRejected
};

struct SimulatedDomainOptions {
  std::string name = "simulated";
  DomainKind kind = DomainKind::kSimulated;  // tests may claim to be another one
  DomainLimits limits = {.max_write_bytes = uint64_t{1} << 40,
                         .max_message_bytes = 1024,
                         .max_region_bytes = uint64_t{1} << 40,
                         .max_outstanding = 64,
                         .max_receives = 64};
  NicModel nic;
  SimulatedFaults faults;
  // False: payloads are only checked, so that there may be no memory behind the addresses.
  bool copy = true;
  // Of each write, only so many bytes from its beginning are copied; the rest is only checked.
  uint64_t copied_bytes = UINT64_MAX;
  // Whether SimulatedDomain::writes() has something to show.
  bool record_writes = false;
  // Whether MapRemote finds the memory of other domains of the network; with `node_size`, only of those of the same
  // node: so many domains each, in the order in which they were made.
  bool mappable = false;
  uint32_t node_size = 0;
};

}  // namespace jax_fabric::simulated

#endif  // JAX_FABRIC_ENGINE_DOMAINS_SIMULATED_SIMULATION_OPTIONS_H_
