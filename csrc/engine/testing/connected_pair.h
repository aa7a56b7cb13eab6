// A sender and a receiver on a simulated network, stepped on a virtual clock.
#ifndef JAX_FABRIC_ENGINE_TESTING_CONNECTED_PAIR_H_
#define JAX_FABRIC_ENGINE_TESTING_CONNECTED_PAIR_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/engine/testing/stepped_engine.h"

namespace jax_fabric::testing {

// Both know each other, and have memory for each other.
struct ConnectedPair {
  explicit ConnectedPair(uint64_t seed = 1, int nics = 1, simulated::SimulatedDomainOptions domain = PromptNic(),
                         GroupOptions group = {})
      : fabric(seed), a(fabric.Add("a", nics, domain, std::move(group))), b(fabric.Add("b", nics, domain)) {
    to_b = a.group->AddPeer(b.group->Address()).value();
    to_a = b.group->AddPeer(a.group->Address()).value();
    EXPECT_TRUE(a.group->WaitPeers({&to_b, 1}, fabric.In(100)).has_value());
    EXPECT_TRUE(b.group->WaitPeers({&to_a, 1}, fabric.In(100)).has_value());
  }

  void Memory(void* source_address, uint64_t source_length, void* target_address, uint64_t target_length) {
    source = a.group->RegisterMemory(source_address, source_length, MemoryKind::kHost, Access::kLocalOnly).value();
    const auto memory =
        b.group->RegisterMemory(target_address, target_length, MemoryKind::kHost, Access::kRemoteWrite).value();
    target = DomainGroup::ParseDescriptor(b.group->Describe(memory).value()).value();
  }
  void Memory(std::vector<std::byte>& from, std::vector<std::byte>& to) {
    Memory(from.data(), from.size(), to.data(), to.size());
  }

  ScatterEntry Entry(uint64_t length, uint32_t immediate) const {
    ScatterEntry entry;
    entry.peer = to_b;
    entry.source = source.address;
    entry.source_memory = source;
    entry.target = &target;
    entry.length = length;
    entry.immediate = immediate;
    return entry;
  }

  SteppedFabric fabric;
  SteppedRank& a;
  SteppedRank& b;
  PeerHandle to_b = 0;
  PeerHandle to_a = 0;
  RegisteredMemory source;
  RemoteMemory target;
};

// For addresses that do not exist.
inline simulated::SimulatedDomainOptions WithoutMemory() {
  simulated::SimulatedDomainOptions options = PromptNic();
  options.copy = false;
  return options;
}

inline bool Mentions(const Error& error, std::string_view text) {
  return error.message.find(text) != std::string::npos;
}

}  // namespace jax_fabric::testing

#endif  // JAX_FABRIC_ENGINE_TESTING_CONNECTED_PAIR_H_
