// WorkId: what work requests carry and completions give back: what it is of, and which one.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_WORK_ID_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_WORK_ID_H_

#include <cstdint>

namespace jax_fabric::connectx {

struct WorkId {
  enum class Kind : uint8_t {
    kLane = 1,         // index: of the lane; position: in its ring
    kDatagramSend,     // position: of the buffer
    kDatagramReceive,  // position: of the buffer
    kImmediate,        // of the shared receive queue of writes
    kMessage,          // position: of the buffer
  };

  Kind kind = Kind::kLane;
  uint32_t index = 0;  // of 24 bits
  uint32_t position = 0;

  uint64_t Pack() const { return uint64_t{static_cast<uint8_t>(kind)} << 56 | uint64_t{index} << 32 | position; }
  static WorkId Unpack(uint64_t id) {
    return {static_cast<Kind>(id >> 56), static_cast<uint32_t>(id >> 32) & 0xffffff, static_cast<uint32_t>(id)};
  }
};

}  // namespace jax_fabric::connectx

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_WORK_ID_H_
