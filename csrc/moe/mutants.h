// Deliberate mistakes in the protocol: a test of the tests. They exist in the test library `moe_with_mutants` only;
// everywhere else Mutated() is false when it is compiled.
#ifndef JAX_FABRIC_MOE_MUTANTS_H_
#define JAX_FABRIC_MOE_MUTANTS_H_

#include <cstdint>

namespace jax_fabric::moe {

enum class Mutant : uint8_t {
  kNone,
  kReuseStagingBeforeItLeft,       // does not wait for the last send of this parity
  kReuseAnnouncementBeforeItLeft,  // the same for the ring that announcements are sent from
  kAlwaysEvenSlots,                // parity of the slots forgotten when packing
  kUnpackOtherParity,              // and when unpacking
  kOddImmediateNeverSent,          // the even one goes in its place
  kExpectOneImmediateLess,         // than there are peers
  kExpectOneImmediateMore,
  kUnpackWithoutWaiting,    // as soon as this rank has sent
  kRunInOrderOfSubmission,  // numbers are handed out, and not kept to
  kClaimAnyNumber,          // of whichever call comes next
  kIssueWithoutRoom,        // rank 0 announces beyond the ring
  kOneRoundLess,            // the last round of a call of several is left out
};

#ifdef JAX_FABRIC_MUTANTS
// Of the whole process; tests set it while nothing runs.
inline Mutant active_mutant = Mutant::kNone;
inline bool Mutated(Mutant mutant) { return active_mutant == mutant; }
#else
constexpr bool Mutated(Mutant) { return false; }
#endif

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_MUTANTS_H_
