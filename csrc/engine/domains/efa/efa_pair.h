// Two domains of a test over libfabric.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_PAIR_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_PAIR_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/engine/domain.h"
#include "csrc/engine/domains/efa/efa_domain.h"

namespace jax_fabric {

// Two domains in this thread, and memory of the second one that the first may write to.
class EfaPair : public testing::Test {
 protected:
  struct Side {
    std::vector<std::byte> memory = std::vector<std::byte>(kBytes);
    std::unique_ptr<Domain> domain;
    MemoryRegion region;
    std::vector<Completion> completions;

    void Poll() {
      std::array<Completion, 32> found;
      const size_t count = domain->Poll(found);
      completions.insert(completions.end(), found.begin(), found.begin() + static_cast<ptrdiff_t>(count));
    }
    size_t Count(CompletionKind kind) const {
      return static_cast<size_t>(std::count_if(completions.begin(), completions.end(),
                                               [&](const Completion& each) { return each.kind == kind; }));
    }
  };
  static constexpr uint64_t kBytes = 4096;

  void Connect(const EfaDomainOptions& options) { Connect(options, options); }
  void Connect(const EfaDomainOptions& writer_options, const EfaDomainOptions& target_options) {
    for (Side* side : {&writer_, &target_}) {
      auto domain = CreateEfaDomain(side == &writer_ ? writer_options : target_options);
      ASSERT_TRUE(domain.has_value()) << domain.error().message;
      side->domain = std::move(*domain);
      const auto region =
          side->domain->RegisterMemory(side->memory.data(), kBytes, MemoryKind::kHost, Access::kRemoteWrite);
      ASSERT_TRUE(region.has_value()) << region.error().message;
      side->region = *region;
    }
    const auto peer = writer_.domain->AddPeer(target_.domain->address());
    ASSERT_TRUE(peer.has_value()) << peer.error().message;
    ASSERT_TRUE(Until([&] { return writer_.domain->peer_state(*peer) == PeerState::kReady; }));
    write_.peer = *peer;
    write_.source = writer_.memory.data();
    write_.local_key = writer_.region.local_key;
    write_.length = 64;
    write_.remote_address = target_.region.remote_address;
    write_.remote_key = target_.region.remote_key;
  }

  // Polls both until it holds; false: not within 20 s.
  bool Until(const std::function<bool()>& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!holds()) {
      if (std::chrono::steady_clock::now() > end) return false;
      writer_.Poll();
      target_.Poll();
    }
    return true;
  }

  Side writer_, target_;
  WriteRequest write_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_EFA_PAIR_H_
