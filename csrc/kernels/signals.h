// How kernels and the host tell each other that an exchange may begin, or is done. Plain memory, no calls.
//
// An exchange of a channel has a number, which travels through the program as data: whoever runs a call twice says the
// same thing twice. The device writes a record and then its sequence (release, system scope); the host acquires the
// sequence, acts once, and writes `done` (release); a waiting kernel acquires that.
#ifndef JAX_FABRIC_KERNELS_SIGNALS_H_
#define JAX_FABRIC_KERNELS_SIGNALS_H_

#include <cstdint>

namespace jax_fabric::kernels {

// Why a kernel stopped waiting.
enum class SignalError : uint32_t {
  kNone = 0,
  kDeadline = 1,  // the host did not say in time that the exchange is done
  kAborted = 2,   // the fabric is being closed
  kStale = 3,     // an exchange whose slots others have now was posted again
};

// What a post says to the host. One cache line.
struct alignas(64) TriggerRecord {
  int64_t sequence = 0;  // written last; 0: nothing yet
  uint32_t kind = 0;     // ExchangeKind
  uint32_t round = 0;
  uint64_t arguments[6] = {};
};
static_assert(sizeof(TriggerRecord) == 64, "one store of a line");

// Of one channel, in host memory that the device has mapped. Each line has one writer.
struct ChannelSignals {
  // At most two exchanges of a channel are under way, so a record is read before its place is taken again.
  static constexpr int64_t kRecords = 4;
  TriggerRecord records[kRecords];  // by the device

  struct alignas(64) DoneLine {
    int64_t sequence = 0;  // by the host: the last exchange that is done
  } done;

  struct alignas(64) ErrorLine {
    int64_t sequence = 0;  // by the device, written last: the exchange that failed first, or 0
    SignalError error = SignalError::kNone;
  } error;

  constexpr TriggerRecord& RecordOf(int64_t sequence) { return records[sequence % kRecords]; }
};

// Of one channel, in device memory.
struct ChannelState {
  int64_t issued = 0;                      // the last ticket
  int64_t posted = 0;                      // the last exchange whose post has run
  SignalError error = SignalError::kNone;  // of the exchange that failed first; nothing waits after it
};

// Of a device, in host memory that it has mapped.
struct alignas(64) AbortWord {
  uint64_t value = 0;  // by the host, not 0: every wait ends
};

// A word that the device raises and the host polls. Values may be skipped.
struct alignas(64) WatcherWord {
  uint64_t value = 0;
};

}  // namespace jax_fabric::kernels

#endif  // JAX_FABRIC_KERNELS_SIGNALS_H_
