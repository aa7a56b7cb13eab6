// The double of libibverbs: a shared library with its symbols, that carries reliable connections and datagrams between
// threads and processes of one machine. What it does as devices do is what the domain relies on (docs/connectx.md);
// what devices do and it does not is timing, packets, and everything that the domain does not use.
//
// Faults are drawn by seed, for devices that are opened afterwards, in this process.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DOUBLE_VERBS_DOUBLE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DOUBLE_VERBS_DOUBLE_H_

#include <cstdint>

namespace jax_fabric::verbs_double {

struct Faults {
  uint64_t seed = 1;
  double datagram_loss = 0;              // of all datagrams, as are the next
  double datagram_copies = 0;            // come twice
  double datagrams_late = 0;             // come behind a later one
  double receiver_not_ready = 0;         // of messages and immediates: wait as if there were no receive, for a moment
  uint32_t completion_delay_us = 0;      // at most
  bool refuse_relaxed_ordering = false;  // as old devices do
  bool refuse_inline = false;
};

// Names of what the library has beside libibverbs' own.
using SetFaultsFunction = void (*)(const Faults*);
inline constexpr char kSetFaults[] = "jf_verbs_double_set_faults";
// How many objects of closed devices their users had not destroyed, in this process.
using LeaksFunction = uint64_t (*)();
inline constexpr char kLeaks[] = "jf_verbs_double_leaks";

}  // namespace jax_fabric::verbs_double

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DOUBLE_VERBS_DOUBLE_H_
