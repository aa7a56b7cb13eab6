// How kernels and the host tell each other that messages may leave, that they have come, and what went wrong. Plain
// memory, no calls.
//
// The exchanges of a channel are numbered on the device (ChannelState). The device writes what the host is to know and
// then the exchange's number (release, system scope); the host acquires that, acts once, and writes `done` (release),
// which a waiting kernel acquires.
#ifndef JAX_FABRIC_KERNELS_SIGNALS_H_
#define JAX_FABRIC_KERNELS_SIGNALS_H_

#include <cstdint>

namespace jax_fabric::kernels {

// Why a channel of a device has failed.
enum class SignalError : uint32_t {
  kNone = 0,
  kDeadline = 1,         // a message did not come in time
  kStopped = 2,          // the host said that there is nothing to wait for
  kMessage = 3,          // a message that cannot be used; `detail` is a MessageFault
  kCapacity = 4,         // more rows for rank `source` than its capacity: `detail`
  kElementCapacity = 5,  // element `source` of a batch has `detail` rows more than its capacity
  kRank = 6,             // the program is on rank `detail` of its axis
  kNotDone = 7,          // an exchange was begun before the one before it was finished
  kNotBegun = 8,         // an exchange was finished without a beginning, or twice; the channel goes on
};

// Of one channel, in host memory that the device has mapped. Each line has one writer.
struct ChannelSignals {
  struct alignas(64) PostedLine {
    int64_t sequence = 0;  // by the device, written last: messages of this exchange may leave
  } posted;

  struct alignas(64) HostLine {
    int64_t done = 0;   // all messages of this exchange that come through the host are here
    uint64_t stop = 0;  // not 0: nobody waits any more
  } host;

  struct alignas(64) ErrorLine {
    int64_t sequence = 0;  // by the device, written last: the exchange that failed first, or 0
    SignalError error = SignalError::kNone;
    uint32_t source = 0;  // rank, or element
    int64_t detail = 0;
  } error;

  struct alignas(64) RefusedLine {
    int64_t count = 0;   // by the device, written last: calls that were to end an exchange that was not begun
    int64_t ticket = 0;  // of the last of them
  } refused;
};

// What a membership epoch of a channel has of its own, in device memory. Recorded launches outlive epochs: here they
// find what the host cannot tell them any more. All else that they were given stays where it is.
struct ChannelEpoch {
  uint64_t incarnation = 0;  // of this rank
  uint32_t membership_epoch = 0;
  const uint8_t* absent = nullptr;   // [N] not 0 for ranks that take no part; null: all do
  const void* first_slot = nullptr;  // of this rank's 2 N slots, if they lie one after the other; else null
  const int64_t* flags = nullptr;    // [N] by the peers: the last exchange whose message is complete
};

// Of one channel, in device memory. Written by one kernel at a time.
struct alignas(64) ChannelState {
  // What all kernels of the channel look at, in 64 bytes: they read it at once.
  int64_t issued = 0;                      // last exchange whose messages have left
  int64_t finished = 0;                    // last one whose messages have come
  SignalError error = SignalError::kNone;  // the first; nothing is done after it
  uint32_t refused = 0;                    // not 0: there was nothing to end for the call that came last
  ChannelEpoch epoch;                      // by the host, before the epoch's first exchange

  uint32_t source = 0;  // of the error, as in ErrorLine
  int64_t detail = 0;
  uint64_t signature = 0;    // of the messages of the exchange that was issued last, for who finishes it
  int64_t told = 0;          // the exchange that failed, once the host has been told
  uint32_t blocks = 0;       // of the running exchange kernel, that are through, and how many of them have failed
  uint32_t sent_blocks = 0;  // of the running send kernel, that are through
};

// A word that the device raises and the host polls. Values may be skipped.
struct alignas(64) WatcherWord {
  uint64_t value = 0;
};

}  // namespace jax_fabric::kernels

#endif  // JAX_FABRIC_KERNELS_SIGNALS_H_
