#include "csrc/engine/deadline_list.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace jax_fabric {
namespace {

TEST(DeadlineList, ExpiresWhatHasPassed) {
  DeadlineList list;
  std::array<DeadlineNode, 5> nodes;
  for (int i = 0; i < 5; ++i) list.Insert(&nodes[i], 100 - i * 10);
  EXPECT_EQ(list.earliest_ns(), 60);
  std::vector<int64_t> expired;
  EXPECT_EQ(list.Expire(79, [&](DeadlineNode* node) { expired.push_back(node->deadline_ns); }), 2);
  EXPECT_EQ(expired, (std::vector<int64_t>{70, 60}));
  EXPECT_EQ(list.earliest_ns(), 80);
  DeadlineList::Remove(&nodes[0]);
  DeadlineList::Remove(&nodes[0]);
  EXPECT_EQ(list.ExpireAll([](DeadlineNode*) {}), 2);
  EXPECT_EQ(list.earliest_ns(), DeadlineList::kNever);
}

TEST(DeadlineList, CallbacksMayChangeTheList) {
  DeadlineList list;
  std::array<DeadlineNode, 3> nodes;
  for (DeadlineNode& node : nodes) list.Insert(&node, 10);
  int calls = 0;
  list.Expire(10, [&](DeadlineNode* node) {
    ++calls;
    list.Insert(node, 20);                            // again, later
    if (calls == 1) DeadlineList::Remove(&nodes[1]);  // one that has expired, too
  });
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(list.earliest_ns(), 20);
  EXPECT_EQ(list.Expire(20, [](DeadlineNode*) {}), 2);
}

}  // namespace
}  // namespace jax_fabric
