// The fixture of the engine's conformance suite: every request type of DomainGroup over a transport, with 1 to 4 NICs,
// on engines with threads or stepped in one. A transport's test instantiates EngineConformance, as it does with
// DomainConformance.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_ENGINE_SUITE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_ENGINE_SUITE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/engine/domains/conformance/conformance_fabric.h"
#include "csrc/engine/transfer_engine.h"

namespace jax_fabric::conformance {

struct EngineCase {
  std::string fabric;
  int nics = 1;
  bool threads = false;
  uint64_t largest_write = 64 << 20;  // lower it where the transport is slow
};

std::string EngineCaseName(const testing::TestParamInfo<EngineCase>& info);
void PrintTo(const EngineCase& value, std::ostream* out);

// How a callback was called.
struct EngineOutcome {
  std::atomic<int> calls{0};  // release in the callback, acquire in whoever waits
  Error error{ErrorCode::kOk, {}};

  WorkerCallback callback();
  bool done() const { return calls.load(std::memory_order_acquire) > 0; }
  bool ok() const { return calls.load(std::memory_order_acquire) == 1 && error.code == ErrorCode::kOk; }
};

class EngineConformance : public testing::TestWithParam<EngineCase> {
 protected:
  struct Node {
    std::unique_ptr<TransferEngine> engine;
    DomainGroup* group = nullptr;
    std::vector<PeerHandle> peers;  // by the number of the other node
    std::vector<FabricMemory> memory;
  };
  // Registered memory of a node, as the node and as its peers see it.
  struct Buffer {
    std::byte* data = nullptr;
    RegisteredMemory here;
    RemoteMemory there;
  };

  void TearDown() override;

  // Nodes "node0", "node1", ... that all know each other. `max_region_bytes` 0: as the transport has it.
  void MakeNodes(size_t count, uint64_t max_region_bytes = 0);
  Buffer MakeBuffer(size_t node, uint64_t length, Access access = Access::kRemoteWrite, uint8_t fill = 0);
  uint32_t Immediate(size_t node) { return nodes_[node].group->AllocateImmediates(1).value(); }
  Deadline In(int64_t milliseconds) const;
  // Well beyond what any of the tests takes.
  RequestOptions Patient() const { return {.deadline = In(60'000)}; }
  void Expect(size_t node, uint32_t immediate, uint64_t count, EngineOutcome& outcome);
  // Steps, or waits for the threads, until the condition holds; fails the test after a generous time.
  bool Until(const std::string& what, const std::function<bool()>& condition);
  void ExpectGood(const Transfer& transfer);
  void Step();
  // Its peers are told nothing.
  void Kill(size_t node);

  // Bytes that depend on the seed and the position.
  static void Fill(std::byte* data, uint64_t length, uint64_t seed);
  static bool Holds(const std::byte* data, uint64_t length, uint64_t seed);

  std::shared_ptr<ConformanceFabric> fabric_;
  std::vector<Node> nodes_;
};

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_ENGINE_SUITE_H_
