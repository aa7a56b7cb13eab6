// MessageBuffers: registered memory for messages that leave and that come, in pieces of one size. Grows, never shrinks.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_MESSAGE_BUFFERS_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_MESSAGE_BUFFERS_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/domains/efa/operation.h"
#include "csrc/engine/domains/nic/memory_table.h"

namespace jax_fabric::efa {

struct MessageBuffer {
  Operation operation;
  std::span<std::byte> bytes;
  void* descriptor = nullptr;
};

class MessageBuffers {
 public:
  MessageBuffers(nic::MemoryTable& memory, size_t bytes) : memory_(memory), bytes_(bytes) {}
  // The provider must not use them any more.
  ~MessageBuffers();

  Result<MessageBuffer*> Take();
  void Return(MessageBuffer* buffer) { free_.push_back(buffer); }

 private:
  struct Chunk {
    std::unique_ptr<std::byte[]> memory;
    MemoryRegion region;
    nic::HeldRegion* held = nullptr;
    std::vector<MessageBuffer> buffers;
  };
  static constexpr size_t kBuffersPerChunk = 64;

  Status Grow();

  nic::MemoryTable& memory_;
  const size_t bytes_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<MessageBuffer*> free_;
};

}  // namespace jax_fabric::efa

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_MESSAGE_BUFFERS_H_
