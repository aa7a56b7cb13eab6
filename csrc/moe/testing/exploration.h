// Every order in which a small program can run: of starts, of arrivals, of completions. Orders that differ only in
// what happens on different ranks without touching each other are one and the same; of each such class one is run.
#ifndef JAX_FABRIC_MOE_TESTING_EXPLORATION_H_
#define JAX_FABRIC_MOE_TESTING_EXPLORATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/moe/testing/moe_fabric.h"
#include "csrc/moe/testing/pattern_exchange.h"

namespace jax_fabric::moe::testing {

struct ExploredCall {
  PatternCall pattern;
  int32_t channel = 0;
  int32_t after = -1;  // index of the call whose result it needs
};

struct Scope {
  int32_t ranks = 2;
  int32_t channels = 1;
  Mapping mapping = Mapping::kNone;
  std::vector<ExploredCall> program;
  // False: a sender hears of its write's end in the moment in which it arrives.
  bool late_completions = true;
  // Of the orders that are run: how often another event may be chosen than the first of those that are possible
  // (starts by rank and call, then what was posted first). Below 0: any number of times. A deviation bound, as the
  // delay bound of Emmi, Qadeer and Rakamaric (2011): mistakes that need few of them are found whatever the size.
  int max_deviations = -1;
  // What comes after a state is run once, however many orders lead to it: all orders, in fewer runs where many of them
  // meet again.
  bool merge_states = false;
};

struct Exploration {
  uint64_t runs = 0;
  uint64_t redundant = 0;  // runs given up because another order is the same, or has led to the same state
  uint64_t states = 0;     // that are different, but for those in which nothing can happen any more
  uint64_t longest = 0;    // run, in events
  bool complete = false;   // every order within the bound was run
  std::string failure;     // of the first run that went wrong, with its events; empty if none did
};

// At most `max_runs` runs, the first failure ends it.
Exploration Explore(const Scope& scope, uint64_t max_runs);

// One order, drawn from the seed. What went wrong, or empty.
std::string RunAnyOrder(const Scope& scope, uint64_t seed);

}  // namespace jax_fabric::moe::testing

#endif  // JAX_FABRIC_MOE_TESTING_EXPLORATION_H_
