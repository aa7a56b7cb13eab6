#include "csrc/moe/node_number.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/engine/domains/local/local_domain.h"
#include "csrc/engine/transfer_engine.h"
#include "csrc/moe/peer_connector.h"
#include "csrc/moe/testing/moe_fabric.h"

namespace jax_fabric::moe {
namespace {

uint64_t Number(const std::string& name) { return NodeNumber(name).value(); }

// What another process finds, after it has left this process's namespaces of that kind. 0: it may not.
uint64_t NumberOfChild(int namespaces) {
  int pipe_ends[2];
  EXPECT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    uint64_t number = unshare(namespaces) == 0 ? Number("") : 0;
    _exit(write(pipe_ends[1], &number, sizeof(number)) == sizeof(number) ? 0 : 1);
  }
  uint64_t number = 0;
  EXPECT_EQ(read(pipe_ends[0], &number, sizeof(number)), static_cast<ssize_t>(sizeof(number)));
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  return number;
}

TEST(NodeNumber, IsOfTheMachine) {
  EXPECT_NE(Number(""), 0u);
  EXPECT_EQ(Number(""), Number(""));
  EXPECT_EQ(NumberOfChild(0), Number(""));
}

TEST(NodeNumber, ContainersAreNodesOfTheirOwn) {
  for (const int namespaces : {CLONE_NEWIPC, CLONE_NEWNET}) {
    const uint64_t other = NumberOfChild(namespaces);
    if (other == 0) GTEST_SKIP() << "this process may not make namespaces";
    EXPECT_NE(other, Number(""));
  }
}

TEST(NodeNumber, ANameIsTheSameEverywhere) {
  EXPECT_EQ(Number("a"), Number("a"));
  EXPECT_NE(Number("a"), Number("b"));
  EXPECT_NE(Number("a"), Number(""));
}

TEST(NodeNumber, RanksKnowWhoSharesTheirNode) {
  const std::vector<uint64_t> nodes = {5, 7, 5, 0, 0};
  const auto ranks = static_cast<int32_t>(nodes.size());
  struct Rank {
    MoeConfig config;
    std::unique_ptr<TransferEngine> engine;
    std::unique_ptr<PeerConnector> connector;
  };
  std::vector<Rank> all(ranks);
  std::vector<Bytes> introductions;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    Rank& each = all[rank];
    each.config = testing::SmallConfig(ranks);
    each.config.layout.shape.rank = rank;
    each.engine = TransferEngine::Create({}).value();
    GroupOptions options;
    options.domains.push_back(CreateLocalDomain({}).value());
    each.connector = std::make_unique<PeerConnector>(each.config, each.engine->AddGroup(std::move(options)).value());
    ASSERT_TRUE(each.connector->Prepare({.memory_bytes = 64, .node = nodes[rank], .map_peers = false}).has_value());
    introductions.push_back(each.connector->Introduction({}).value());
  }
  for (Rank& each : all) {
    const Deadline deadline = Deadline::After(SteadyClock::Get(), 20'000'000);
    ASSERT_TRUE(each.connector->Connect(introductions, deadline).has_value());
  }
  for (int32_t rank = 0; rank < ranks; ++rank) {
    for (int32_t other = 0; other < ranks; ++other) {
      const bool same = nodes[rank] != 0 && nodes[rank] == nodes[other];
      EXPECT_EQ(all[rank].connector->acquaintances()[other].same_node, same) << rank << " " << other;
    }
  }
  for (Rank& each : all) each.connector.reset();
}

}  // namespace
}  // namespace jax_fabric::moe
