// Engines that end with writes under way and are made anew, over and over: nothing of the former ones stays.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "csrc/engine/domains/conformance/engine_suite.h"

namespace jax_fabric::conformance {
namespace {

constexpr int kRounds = 100;
constexpr int kWarmUp = 20;  // libraries keep what they made at first

// What this process holds.
struct Footprint {
  int64_t files = 0;
  int64_t threads = 0;
  int64_t mappings = 0;
  int64_t resident_kib = 0;

  static Footprint Now() {
    Footprint now;
    now.files = Entries("/proc/self/fd");
    now.threads = Entries("/proc/self/task");
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) ++now.mappings;
    malloc_trim(0);  // what is free and between what is not is no leak: libfabric's provider efa leaves such holes
    std::ifstream statm("/proc/self/statm");
    int64_t size = 0, resident = 0;
    statm >> size >> resident;
    now.resident_kib = resident * sysconf(_SC_PAGESIZE) / 1024;
    return now;
  }

 private:
  static int64_t Entries(const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  }
};

// Of memory, in several rounds.
struct ResidentRange {
  int64_t least_kib = std::numeric_limits<int64_t>::max();
  int64_t most_kib = 0;

  void Add(const Footprint& footprint) {
    least_kib = std::min(least_kib, footprint.resident_kib);
    most_kib = std::max(most_kib, footprint.resident_kib);
  }
};

TEST_P(EngineConformance, AHundredRestartsOfBothLeaveNothingBehind) {
  constexpr uint64_t kBytes = 128 << 10;
  constexpr int kWrites = 8;
  Footprint before;
  ResidentRange early, late;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    if (round == kWarmUp) before = Footprint::Now();
    if (round >= kWarmUp && round < 2 * kWarmUp) early.Add(Footprint::Now());
    if (round >= kRounds - kWarmUp) late.Add(Footprint::Now());
    ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
    std::array<EngineOutcome, 2> arrived;
    std::array<Buffer, 2> targets;
    std::array<uint32_t, 2> immediates;
    for (size_t i = 0; i < 2; ++i) {
      targets[i] = MakeBuffer(i, kBytes);
      immediates[i] = Immediate(i);
      Expect(i, immediates[i], kWrites * nodes_[i].group->WriteImmediates(nodes_[i].peers[1 - i], kBytes).value(),
             arrived[i]);
    }
    std::array<std::array<EngineOutcome, kWrites>, 2> outcomes;
    for (size_t i = 0; i < 2; ++i) {
      const Buffer source = MakeBuffer(i, kBytes, Access::kLocalOnly);
      Fill(source.data, kBytes, static_cast<uint64_t>(round) * 2 + i);
      for (EngineOutcome& outcome : outcomes[i]) {
        const SingleWrite write{.peer = nodes_[i].peers[1 - i],
                                .source = source.here,
                                .target = &targets[1 - i].there,
                                .length = kBytes,
                                .immediate = immediates[1 - i]};
        RequestOptions options = Patient();
        options.on_worker = outcome.callback();
        ASSERT_TRUE(nodes_[i].group->Write(write, std::move(options)).has_value());
      }
    }
    // Whoever goes first has all that the other one sent; what it sent itself may be under way.
    const size_t first = static_cast<size_t>(round) % 2;
    Until("its writes are there", [&] { return arrived[first].done(); });
    EXPECT_TRUE(arrived[first].ok()) << arrived[first].error.message;
    EXPECT_TRUE(Holds(targets[first].data, kBytes, static_cast<uint64_t>(round) * 2 + 1 - first));
    Kill(first);
    Kill(1 - first);
    for (const auto& of_node : outcomes) {
      for (const EngineOutcome& outcome : of_node) EXPECT_EQ(outcome.calls.load(), 1);
    }
    nodes_.clear();
    fabric_.reset();
  }
  const Footprint after = Footprint::Now();
  EXPECT_LE(after.files, before.files);
  EXPECT_LE(after.threads, before.threads);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what was freed
  EXPECT_LE(after.mappings, before.mappings + 8);
  // What is free comes and goes in blocks of 9 MiB, as it happens to lie together. What is kept raises the least and
  // the most; the buffers of the rounds in between: 24 MiB.
  const int64_t growth_kib = std::min(late.least_kib - early.least_kib, late.most_kib - early.most_kib);
  EXPECT_LT(growth_kib, 12 * 1024) << early.least_kib << " to " << early.most_kib << " KiB at first, in the end "
                                   << late.least_kib << " to " << late.most_kib;
#endif
}

}  // namespace
}  // namespace jax_fabric::conformance
