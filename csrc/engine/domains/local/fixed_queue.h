// A first-in first-out queue whose memory is allocated once.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_FIXED_QUEUE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_FIXED_QUEUE_H_

#include <cstddef>
#include <utility>
#include <vector>

namespace jax_fabric::local {

template <typename T>
class FixedQueue {
 public:
  explicit FixedQueue(size_t capacity) : items_(capacity) {}

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == items_.size(); }

  // Not when full.
  void Push(T item) {
    const size_t at = first_ + size_;
    items_[at < items_.size() ? at : at - items_.size()] = std::move(item);
    ++size_;
  }
  // Not when empty.
  T Pop() {
    T item = std::move(items_[first_]);
    if (++first_ == items_.size()) first_ = 0;
    --size_;
    return item;
  }

 private:
  std::vector<T> items_;
  size_t first_ = 0;
  size_t size_ = 0;
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_FIXED_QUEUE_H_
