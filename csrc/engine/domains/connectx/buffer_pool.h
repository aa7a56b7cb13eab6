// BufferPool: registered memory for messages and datagrams, in pieces of one size. Grows, never shrinks.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_BUFFER_POOL_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_BUFFER_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/domains/connectx/verbs_device.h"

namespace jax_fabric::connectx {

class BufferPool {
 public:
  // `most`: it never has more buffers.
  BufferPool(VerbsDevice& device, size_t bytes, uint32_t most) : device_(device), bytes_(bytes), most_(most) {}
  // The device must not use them any more.
  ~BufferPool() = default;

  // Fails when all of them are in use, or memory cannot be registered.
  Result<uint32_t> Take();
  void Return(uint32_t buffer) { free_.push_back(buffer); }

  std::span<std::byte> bytes(uint32_t buffer) const {
    return {chunks_[buffer / kPerChunk].memory.get() + buffer % kPerChunk * bytes_, bytes_};
  }
  // The first `length` bytes of it, for a work request.
  ibv_sge Element(uint32_t buffer, size_t length) const {
    return {reinterpret_cast<uint64_t>(bytes(buffer).data()), static_cast<uint32_t>(length),
            chunks_[buffer / kPerChunk].mr->lkey};
  }

 private:
  static constexpr uint32_t kPerChunk = 64;
  struct Chunk {
    std::unique_ptr<std::byte[]> memory;
    Owned<ibv_mr> mr;  // ends before the memory
  };

  Status Grow();

  VerbsDevice& device_;
  const size_t bytes_;
  const uint32_t most_;
  std::vector<Chunk> chunks_;
  std::vector<uint32_t> free_;
};

}  // namespace jax_fabric::connectx

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_BUFFER_POOL_H_
