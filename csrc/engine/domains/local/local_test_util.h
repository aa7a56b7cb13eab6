// What the tests of the local domain share.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_TEST_UTIL_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/engine/domains/local/local_domain.h"

namespace jax_fabric {

inline constexpr int64_t kPatienceUs = 30'000'000;

inline std::unique_ptr<Domain> Make(const LocalDomainOptions& options = {}) {
  auto domain = CreateLocalDomain(options);
  EXPECT_TRUE(domain.has_value()) << domain.error().message;
  return std::move(*domain);
}

// Polls the domain until the condition holds; all completions go to `got`.
inline bool Until(Domain& domain, std::vector<Completion>& got, const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::After(SteadyClock::Get(), kPatienceUs);
  std::array<Completion, 64> completions;
  while (!condition()) {
    if (deadline.Passed(SteadyClock::Get())) return false;
    const size_t count = domain.Poll(completions);
    got.insert(got.end(), completions.begin(), completions.begin() + static_cast<ptrdiff_t>(count));
    if (count == 0) std::this_thread::yield();
  }
  return true;
}

inline WriteRequest MakeWrite(PeerId peer, const MemoryRegion& from, const MemoryRegion& to, uint64_t length,
                              std::optional<uint32_t> immediate) {
  WriteRequest write;
  write.peer = peer;
  write.source = reinterpret_cast<const void*>(from.address);
  write.local_key = from.local_key;
  write.length = length;
  write.remote_address = to.remote_address;
  write.remote_key = to.remote_key;
  write.immediate = immediate;
  return write;
}

inline int CountDescriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<int>(std::distance(begin(files), end(files)));
}

inline int CountThreads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

inline int CountMappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("jax_fabric") != std::string::npos;
  return count;
}

inline MemoryRegion Register(Domain& domain, void* address, uint64_t length, Access access = Access::kRemoteWrite) {
  auto region = domain.RegisterMemory(address, length, MemoryKind::kHost, access);
  EXPECT_TRUE(region.has_value()) << region.error().message;
  return region.value_or(MemoryRegion{});
}

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_TEST_UTIL_H_
