// The fixture of the conformance suite. The tests are in *_suite.cc; a transport's test instantiates DomainConformance.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_CONFORMANCE_SUITE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_CONFORMANCE_SUITE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/engine/domains/conformance/conformance_fabric.h"
#include "csrc/engine/domains/conformance/node.h"

namespace jax_fabric::conformance {

enum class NodePlacement { kOneThread, kThreads, kProcesses };

struct ConformanceCase {
  std::string fabric;
  NodePlacement placement = NodePlacement::kOneThread;
  // What a transport cannot do; the tests say what they skip.
  bool survives_bad_writes = true;  // a refused write leaves the connection usable
  bool connects_to_itself = true;
  bool notices_death = true;          // of a peer, within the tests' patience
  uint64_t largest_write = 64 << 20;  // lower it where the transport is slow
  bool checks_empty_writes = true;    // whether a write without bytes is inside of what may be written to
};

std::string CaseName(const testing::TestParamInfo<ConformanceCase>& info);
void PrintTo(const ConformanceCase& value, std::ostream* out);

// A node with what the tests know about it.
struct TestNode {
  std::unique_ptr<Node> node;
  std::vector<PeerId> peers;    // by the index of the other node
  std::vector<Completion> own;  // kWrite and kSend
  std::vector<Completion> immediates;
  std::vector<Completion> receives;
  std::vector<Completion> faults;
  uint64_t posted = 0;  // requests of which `own` must get one completion each

  Node* operator->() const { return node.get(); }
};

// A registered stretch of a node's memory.
struct Buffer {
  uint64_t address = 0;
  uint64_t length = 0;
  MemoryRegion region;
};

class DomainConformance : public testing::TestWithParam<ConformanceCase> {
 protected:
  // Whatever a test did, every posted request must have ended exactly once.
  void TearDown() override;

  // Makes nodes that all know each other and waits until they are ready. Indexes go on from those made before.
  void MakeNodes(size_t count, const DomainShape& shape = {});
  void MakeUnconnectedNode(const DomainShape& shape = {});
  void Connect(size_t from, size_t to);
  // Of `node`: allocated and registered; every byte is `poison`.
  Buffer MakeBuffer(size_t node, uint64_t length, Access access = Access::kRemoteWrite, uint8_t poison = 0xa5);

  WriteRequest MakeWrite(size_t from, size_t to, const Buffer& source, const Buffer& target, uint64_t length,
                         uint64_t source_offset = 0, uint64_t target_offset = 0,
                         std::optional<uint32_t> immediate = std::nullopt);

  // Posts all, polling everyone while the answer is kAgain. Returns how often it was.
  uint64_t Post(size_t from, std::span<const WriteRequest> requests);
  uint64_t Post(size_t from, std::span<const SendRequest> requests);
  // Expects that the request fails: either kRejected with words, or an error completion of which the error is returned.
  void ExpectRefused(size_t from, const WriteRequest& request, const std::string& what);

  // Polls everyone once. A dead node is skipped.
  void PollAll();
  // Polls until the condition holds; fails the test after a generous time.
  bool Until(const std::string& what, const std::function<bool()>& condition);
  bool UntilComplete();
  // Polls a little longer, to catch what should not come.
  void PollForMore();

  // Every immediate in [0, count) came to the node exactly once and nothing else.
  void ExpectEachImmediateOnce(size_t node, uint32_t count);
  static std::map<uint64_t, int> CountContexts(const std::vector<Completion>& completions);

  std::vector<TestNode> nodes_;

 private:
  void Sort(TestNode& node, const std::vector<Completion>& completions);

  std::shared_ptr<ConformanceFabric> fabric_;  // of the nodes in this thread
};

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_CONFORMANCE_SUITE_H_
