// An intrusive lock-free queue with many producers and one consumer. `Node` has a member `Node* next`.
//
// Producers push onto a list in reverse order; the consumer takes the whole list at once and turns it round. That
// way a producer that loses its processor in the middle of a push delays nobody (a ring with reserved cells would
// make the consumer wait for it), nothing is allocated, and the queue is never full: what bounds it is the number of
// nodes there are.
#ifndef JAX_FABRIC_BASE_MPSC_QUEUE_H_
#define JAX_FABRIC_BASE_MPSC_QUEUE_H_

#include <atomic>

namespace jax_fabric {

template <typename Node>
class MpscQueue {
 public:
  MpscQueue() = default;
  MpscQueue(const MpscQueue&) = delete;
  MpscQueue& operator=(const MpscQueue&) = delete;

  // Any thread. The node belongs to the queue until TakeAll returns it.
  void Push(Node* node) {
    Node* head = head_.load(std::memory_order_relaxed);
    do {
      node->next = head;
      // Release, partner: the acquire in TakeAll (the node's content). Sequentially consistent besides, so that the
      // producer's next load of a "consumer sleeps" flag cannot move in front of it; partner: Empty().
    } while (!head_.compare_exchange_weak(head, node, std::memory_order_seq_cst, std::memory_order_relaxed));
  }

  // Consumer only. Everything pushed so far, linked by `next`, each producer's nodes in the order of their pushes.
  Node* TakeAll() {
    // Looking first keeps the cache line shared while there is nothing.
    if (head_.load(std::memory_order_relaxed) == nullptr) return nullptr;
    Node* reversed = head_.exchange(nullptr, std::memory_order_acquire);  // partner: Push
    Node* in_order = nullptr;
    while (reversed != nullptr) {
      Node* rest = reversed->next;
      reversed->next = in_order;
      in_order = reversed;
      reversed = rest;
    }
    return in_order;
  }

  // For the consumer, after it has announced that it is going to sleep (sequentially consistent, see Push).
  bool Empty() const { return head_.load(std::memory_order_seq_cst) == nullptr; }

 private:
  std::atomic<Node*> head_{nullptr};
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_MPSC_QUEUE_H_
