// The inner loops of `jax-fabric bench transfer`, so that what is measured is not Python's interpreter.
#ifndef JAX_FABRIC_FFI_HOST_TRANSFER_BENCHMARKS_H_
#define JAX_FABRIC_FFI_HOST_TRANSFER_BENCHMARKS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/memory.h"
#include "csrc/engine/requests.h"
#include "csrc/ffi/host/host_engine.h"

namespace jax_fabric::ffi_layer {

// Two processes hand a shared word to and fro, spinning: the floor under everything that crosses. One side is first.
// Returns the nanoseconds of each round trip.
Result<std::vector<int64_t>> BounceWord(uint64_t* word, bool first, uint32_t rounds, Deadline deadline);

struct Bounce {
  PeerHandle peer = 0;
  RegisteredMemory source;
  const RemoteMemory* target = nullptr;
  uint64_t length = 0;  // of each write, bytes of the source
  uint32_t incoming = 0;
  uint32_t outgoing = 0;  // immediates: that come from the peer, and that go to it
  bool first = false;
  uint32_t rounds = 0;
};

// Two groups answer each other's writes, from their workers. Nanoseconds of each round trip, from one arrival to the
// next.
Result<std::vector<int64_t>> BounceWrites(DomainGroup& group, const Bounce& bounce, Deadline deadline);

// Nanoseconds of the call that submits an empty write, and from that call until the worker has posted it and seen its
// completion.
struct SubmitTimes {
  std::vector<int64_t> call_ns;
  std::vector<int64_t> posted_ns;
};
Result<SubmitTimes> MeasureSubmit(DomainGroup& group, PeerHandle peer, const RemoteMemory& target, uint32_t rounds,
                                  Deadline deadline);

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_HOST_TRANSFER_BENCHMARKS_H_
