// What can be wrong with a message: CheckMessage's answers on the CPU and on a device.
#ifndef JAX_FABRIC_KERNELS_MESSAGE_FAULT_H_
#define JAX_FABRIC_KERNELS_MESSAGE_FAULT_H_

#include <cstdint>

namespace jax_fabric::kernels {

// Of several faults, the one that is named first here is told.
#define JAX_FABRIC_MESSAGE_FAULTS(FAULT)                                          \
  FAULT(kMagic, "no message (bad magic)")                                         \
  FAULT(kVersion, "another version of the message format")                        \
  FAULT(kChannel, "message of another channel")                                   \
  FAULT(kSequence, "message of another exchange (bad sequence)")                  \
  FAULT(kIncarnation, "message of another incarnation of the peer")               \
  FAULT(kMembershipEpoch, "message of another membership epoch")                  \
  FAULT(kKind, "the peer makes another kind of call")                             \
  FAULT(kSignature, "the peer's call has another signature")                      \
  FAULT(kRows, "more rows than a message has room for")                           \
  FAULT(kOtherRows, "not the rows that the dispatch before calls for")            \
  FAULT(kRankRows, "more rows for a rank than max_tokens")                        \
  FAULT(kFewEntries, "fewer entries for a rank than rows")                        \
  FAULT(kManyEntries, "more entries for a rank than possible")                    \
  FAULT(kEntryCount, "the entry count disagrees with the header")                 \
  FAULT(kExpertRows, "more rows for an expert than for its rank")                 \
  FAULT(kExpertRowsSum, "the rows of the experts do not add up")                  \
  FAULT(kRounds, "more rounds than possible, or none")                            \
  FAULT(kFirstRow, "rows before those of the first round")                        \
  FAULT(kRoundRows, "more rows in a round than private_tokens")                   \
  FAULT(kLateRows, "rows after the last round")                                   \
  FAULT(kRoundRowsSum, "the rows of the rounds do not add up")                    \
  FAULT(kRowCount, "the row count disagrees with the header")                     \
  FAULT(kPayloadOffset, "the rows begin where they may not (bad payload offset)") \
  FAULT(kEntries, "entries in a message that has none")                           \
  FAULT(kRowsPastMax, "rows past max_tokens")                                     \
  FAULT(kToken, "a row's token is not below max_tokens")                          \
  FAULT(kTokenOrder, "the tokens of the rows do not rise")                        \
  FAULT(kEntryBegin, "the entries of a row begin where they may not")             \
  FAULT(kEntryEnd, "the entries of a row end past the last one")                  \
  FAULT(kNoEntries, "a row without entries")                                      \
  FAULT(kRowEntries, "a row with more entries than possible")                     \
  FAULT(kExpert, "an entry names an expert that does not live here")              \
  FAULT(kExpertOrder, "the experts of a row do not rise")                         \
  FAULT(kSource, "no such source")

enum class MessageFault : uint32_t {
  kNone = 0,
#define JAX_FABRIC_FAULT(name, text) name,
  JAX_FABRIC_MESSAGE_FAULTS(JAX_FABRIC_FAULT)
#undef JAX_FABRIC_FAULT
};

// Null for kNone.
constexpr const char* TextOf(MessageFault fault) {
  switch (fault) {
    case MessageFault::kNone:
      return nullptr;
#define JAX_FABRIC_FAULT(name, text) \
  case MessageFault::name:           \
    return text;
      JAX_FABRIC_MESSAGE_FAULTS(JAX_FABRIC_FAULT)
#undef JAX_FABRIC_FAULT
  }
  return "an unknown fault";
}

}  // namespace jax_fabric::kernels

#endif  // JAX_FABRIC_KERNELS_MESSAGE_FAULT_H_
