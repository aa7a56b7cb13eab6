// Many deadlines of which nearly all are cancelled before they pass.
//
// Inserting and removing cost a few pointer writes and allocate nothing. The list is not sorted: it is walked only
// when the earliest deadline it has seen since the last walk has passed, which with deadlines of seconds is seldom.
#ifndef JAX_FABRIC_ENGINE_DEADLINE_LIST_H_
#define JAX_FABRIC_ENGINE_DEADLINE_LIST_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace jax_fabric {

struct DeadlineNode {
  DeadlineNode* previous_deadline = nullptr;
  DeadlineNode* next_deadline = nullptr;
  int64_t deadline_ns = 0;

  bool linked() const { return next_deadline != nullptr; }
};

class DeadlineList {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  DeadlineList() { Reset(all_); }
  DeadlineList(const DeadlineList&) = delete;
  DeadlineList& operator=(const DeadlineList&) = delete;

  void Insert(DeadlineNode* node, int64_t deadline_ns) {
    node->deadline_ns = deadline_ns;
    Link(all_, node);
    earliest_ns_ = std::min(earliest_ns_, deadline_ns);
  }

  // Nothing happens when the node is in no list.
  static void Remove(DeadlineNode* node) {
    if (!node->linked()) return;
    node->previous_deadline->next_deadline = node->next_deadline;
    node->next_deadline->previous_deadline = node->previous_deadline;
    node->previous_deadline = node->next_deadline = nullptr;
  }

  // Nothing passes before this moment (it may be too early, never too late).
  int64_t earliest_ns() const { return earliest_ns_; }

  // Removes every node whose deadline is not after `now_ns`, then calls on_expired(node) for each; on_expired may
  // insert and remove nodes. Returns how many there were.
  template <typename OnExpired>
  int Expire(int64_t now_ns, OnExpired on_expired) {
    if (now_ns < earliest_ns_) return 0;
    DeadlineNode expired;
    Reset(expired);
    earliest_ns_ = kNever;
    for (DeadlineNode* node = all_.next_deadline; node != &all_;) {
      DeadlineNode* next = node->next_deadline;
      if (node->deadline_ns <= now_ns) {
        Remove(node);
        Link(expired, node);
      } else {
        earliest_ns_ = std::min(earliest_ns_, node->deadline_ns);
      }
      node = next;
    }
    int count = 0;
    for (; expired.next_deadline != &expired; ++count) {
      DeadlineNode* node = expired.next_deadline;
      Remove(node);
      on_expired(node);
    }
    return count;
  }

  // As if all deadlines had passed.
  template <typename OnExpired>
  int ExpireAll(OnExpired on_expired) {
    earliest_ns_ = kNever - 1;
    return Expire(kNever, on_expired);
  }

 private:
  static void Reset(DeadlineNode& sentinel) { sentinel.previous_deadline = sentinel.next_deadline = &sentinel; }
  static void Link(DeadlineNode& sentinel, DeadlineNode* node) {
    node->previous_deadline = sentinel.previous_deadline;
    node->next_deadline = &sentinel;
    node->previous_deadline->next_deadline = node;
    sentinel.previous_deadline = node;
  }

  DeadlineNode all_;
  int64_t earliest_ns_ = kNever;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_DEADLINE_LIST_H_
