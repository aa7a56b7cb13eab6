// A fake SRD device: stands in for libibverbs and libefa below libfabric's real "efa" provider, on machines without
// such a NIC. One device a process, between processes and threads of one machine. Like SRD it is reliable and keeps no
// order: writes overtake each other, and so do the segments of one write. What it refuses it refuses with EFA's status
// codes (status.h). docs/nics.md says what it is good for, and what only a NIC can show.
//
// In a C++ test it is linked into the program (its symbols come before those of the libraries that the provider needs);
// other programs load libfakesrd.so before libfabric, with its symbols global.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_FAKE_SRD_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_FAKE_SRD_H_

#include <cstdint>

namespace jax_fabric::fake_srd {

struct Faults {
  uint64_t seed = 1;
  uint32_t window = 64;             // requests that may overtake each other; 1: in the order of posting
  uint32_t start_delay_us = 30;     // at most, before a request's first segment leaves: what lets others overtake it
  double hold = 0;                  // of all segments: the chosen one is left for later
  double send_queue_full = 0;       // of all posts: "no memory", try again
  double receiver_not_ready = 0;    // of messages and of immediates that take a receive: as if there were none
  double receive_error = 0;         // of all messages: the receive ends with an error
  uint32_t completion_entries = 0;  // of queues that are created afterwards, whatever was asked for; 0: as asked for
};

// What devices of this process have done, so that a test knows that it tested something.
struct Statistics {
  uint64_t requests = 0;
  uint64_t segments = 0;
  uint64_t overtaken = 0;  // requests that ended while an earlier one of the same queue pair was under way
  uint64_t refused_posts = 0;
  uint64_t not_ready = 0;
  uint64_t overruns = 0;  // completions that a full queue had no room for
};

// From now on, for all devices of this process.
void SetFaults(const Faults& faults);
Statistics ReadStatistics();

}  // namespace jax_fabric::fake_srd

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_FAKE_SRD_H_
