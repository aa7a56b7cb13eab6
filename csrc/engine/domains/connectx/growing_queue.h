// A first-in first-out queue that allocates only when it gets longer than ever before.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_GROWING_QUEUE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_GROWING_QUEUE_H_

#include <cstddef>
#include <utility>
#include <vector>

namespace jax_fabric::connectx {

template <typename T>
class GrowingQueue {
 public:
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  void Push(T item) {
    if (size_ == items_.size()) Grow();
    items_[(first_ + size_++) % items_.size()] = std::move(item);
  }
  // Neither when empty.
  T& front() { return items_[first_]; }
  T& back() { return items_[(first_ + size_ - 1) % items_.size()]; }
  T Pop() {
    T item = std::move(items_[first_]);
    first_ = (first_ + 1) % items_.size();
    --size_;
    return item;
  }

 private:
  void Grow() {
    std::vector<T> larger(items_.empty() ? 64 : 2 * items_.size());
    for (size_t i = 0; i < size_; ++i) larger[i] = std::move(items_[(first_ + i) % items_.size()]);
    items_ = std::move(larger);
    first_ = 0;
  }

  std::vector<T> items_;  // of a power of two
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace jax_fabric::connectx

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_GROWING_QUEUE_H_
