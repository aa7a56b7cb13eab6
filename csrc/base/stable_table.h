// A table that grows without moving its elements: readers need no lock.
#ifndef JAX_FABRIC_BASE_STABLE_TABLE_H_
#define JAX_FABRIC_BASE_STABLE_TABLE_H_

#include <array>
#include <atomic>
#include <cstdint>

namespace jax_fabric {

template <typename T, uint32_t kChunkSize, uint32_t kMaxChunks>
class StableTable {
 public:
  static constexpr uint32_t kCapacity = kChunkSize * kMaxChunks;

  StableTable() = default;
  StableTable(const StableTable&) = delete;
  StableTable& operator=(const StableTable&) = delete;
  ~StableTable() {
    for (auto& chunk : chunks_) delete chunk.load(std::memory_order_relaxed);  // no reader is left
  }

  // Any thread; null when the element has not been made.
  T* Find(uint32_t index) const {
    if (index >= kCapacity) return nullptr;
    // Acquire, partner: the release in Reserve.
    Chunk* chunk = chunks_[index / kChunkSize].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : &(*chunk)[index % kChunkSize];
  }

  // Makes all elements below `size` (at most kCapacity). One caller at a time.
  void Reserve(uint32_t size) {
    for (uint32_t i = 0; i < kMaxChunks && i * kChunkSize < size; ++i) {
      if (chunks_[i].load(std::memory_order_relaxed) != nullptr) continue;  // only this caller stores
      chunks_[i].store(new Chunk(), std::memory_order_release);             // partner: Find
    }
  }

 private:
  using Chunk = std::array<T, kChunkSize>;
  std::array<std::atomic<Chunk*>, kMaxChunks> chunks_{};
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_STABLE_TABLE_H_
