// Deliberate mistakes in the protocol of grants: a test of its tests, as csrc/moe/mutants.h is of MoE's. They exist in
// the test library `engine_with_mutants` only; everywhere else Mutated() is false when it is compiled.
#ifndef JAX_FABRIC_ENGINE_GRANT_MUTANTS_H_
#define JAX_FABRIC_ENGINE_GRANT_MUTANTS_H_

#include <cstdint>

namespace jax_fabric {

enum class GrantMutant : uint8_t {
  kNone,
  kConfirmWhileInFlight,     // the writer answers without waiting for what it has posted
  kForgetWhatFailed,         // it does not tell of writes that failed
  kForgetEarlyRevocation,    // of a grant that it has not used yet
  kForgetFormerTransfers,    // it tells of the writes of the last transfer only
  kReleaseWithoutArrivals,   // the owner does not wait for the immediates of what succeeded
  kReleaseDespiteFailures,   // nor cares for what failed
  kReleaseAtDeadline,        // without a confirmation
  kReleaseWithoutRemoving,   // of a lost peer, what is under way may still land
  kTakeAnyConfirmation,      // of whichever grant
  kCountArrivalsOfAllTimes,  // those before the grant as well
};

#ifdef JAX_FABRIC_MUTANTS
// Of the whole process; tests set it while nothing runs.
inline GrantMutant active_grant_mutant = GrantMutant::kNone;
inline bool Mutated(GrantMutant mutant) { return active_grant_mutant == mutant; }
#else
constexpr bool Mutated(GrantMutant) { return false; }
#endif

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_GRANT_MUTANTS_H_
