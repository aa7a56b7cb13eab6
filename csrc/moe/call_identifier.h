// Which call of which program a ticket is asked for, as a number that is equal on all ranks.
//
// XLA runs independent calls of one program in any order. What it tells a handler: the run, which is the number of the
// launch, and the call site in the compiled program. Sites are created in the order of the program when it is compiled;
// their `serial` counts them in this process only. The key of a site is equal on all ranks, and different for all calls
// that were lowered apart (it contains a hash of the program's name and arguments, and the module's channel id).
//
// Runs are not equal on all ranks: each process counts the launches of a program since it began, those that fail before
// they reach a call among them, so survivors of a lost rank and a rank that comes back have other numbers. What they
// have in common is the order. XLA:CPU runs the launches that one thread makes one after the other (each waits for the
// one before it), so the n-th run that is seen for a key is the same launch on all ranks. Everybody begins to count
// when the channel is made, in every membership epoch. Runs of a program that come back, or go down, were in flight
// together: that is an error, never a guess. Where all ranks live in one process its numbers are everybody's, and are
// used.
//
// Sites with an equal key exist where a jitted function is called several times inside of another. Where all ranks
// live in one process the serial tells them apart. Elsewhere it is their order within a run, which is the program's
// order if the calls depend on each other; if XLA started them in another order they are independent, and the ranks
// could disagree: that is an error as well.
#ifndef JAX_FABRIC_MOE_CALL_IDENTIFIER_H_
#define JAX_FABRIC_MOE_CALL_IDENTIFIER_H_

#include <cstdint>
#include <unordered_map>

#include "csrc/base/status.h"

namespace jax_fabric::moe {

struct CallSite {
  uint64_t serial = 0;  // rises in the order of creation
  uint64_t key = 0;     // equal on all ranks
};

class CallIdentifier {
 public:
  // `one_process`: all ranks share this process's serials and runs.
  explicit CallIdentifier(bool one_process) : one_process_(one_process) {}

  // The identity of this execution of `site` in `run`. kFailedPrecondition when calls cannot be told apart.
  Result<uint64_t> Identify(const CallSite& site, int64_t run);

 private:
  struct SiteState {
    int64_t run = 0;
    uint64_t ordinal = 0;     // among the sites of its key, in this run
    uint64_t executions = 0;  // in this run
  };
  struct KeyState {
    int64_t run = 0;
    uint64_t launches = 0;     // seen, this run among them
    uint64_t sites = 0;        // seen in this run
    uint64_t last_serial = 0;  // of them
  };

  const bool one_process_;
  std::unordered_map<uint64_t, SiteState> sites_;  // by serial
  std::unordered_map<uint64_t, KeyState> keys_;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_CALL_IDENTIFIER_H_
