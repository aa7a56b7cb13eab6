#include "csrc/engine/registration_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "csrc/engine/domains/simulated/simulated_domain.h"
#include "csrc/engine/domains/simulated/simulated_network.h"
#include "csrc/engine/shard_plan.h"
#include "csrc/engine/testing/virtual_clock.h"

namespace jax_fabric {
namespace {

using simulated::SimulatedDomain;
using simulated::SimulatedNetwork;

class RegistrationCacheTest : public ::testing::Test {
 protected:
  RegistrationCacheTest() {
    for (int i = 0; i < 2; ++i) {
      simulated::SimulatedDomainOptions options;
      options.limits.max_region_bytes = uint64_t{64} << 30;
      auto domain = std::make_unique<SimulatedDomain>(network_, options);
      raw_.push_back(domain.get());
      domains_.push_back(std::move(domain));
    }
    cache_ = std::make_unique<RegistrationCache>(domains_);
  }

  Result<RegisteredMemory> Register(uint64_t address, uint64_t length, Access access = Access::kRemoteWrite,
                                    MemoryKind kind = MemoryKind::kHost) {
    return cache_->Register(reinterpret_cast<void*>(address), length, kind, access);
  }

  testing::VirtualClock clock_;
  SimulatedNetwork network_{1, clock_};
  std::vector<SimulatedDomain*> raw_;
  std::vector<std::unique_ptr<Domain>> domains_;
  std::unique_ptr<RegistrationCache> cache_;
};

TEST_F(RegistrationCacheTest, SameAndSubRangesShare) {
  const auto whole = Register(4096, 8192).value();
  const auto same = Register(4096, 8192).value();
  const auto inside = Register(5000, 100).value();
  const auto end = Register(4096 + 8191, 1).value();
  EXPECT_EQ(raw_[0]->regions(), 1u);
  EXPECT_EQ(raw_[1]->regions(), 1u);
  EXPECT_EQ(inside.id, whole.id);
  EXPECT_EQ(cache_->Find(inside)->address, 4096u);
  for (const auto& memory : {whole, same, inside}) EXPECT_TRUE(cache_->Release(memory).has_value());
  EXPECT_EQ(raw_[0]->regions(), 1u);
  EXPECT_TRUE(cache_->Release(end).has_value());
  EXPECT_EQ(raw_[0]->regions(), 0u);
  EXPECT_EQ(cache_->Release(end).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(cache_->Find(end), nullptr);
}

TEST_F(RegistrationCacheTest, SuperRangesPermissionsAndKindsDoNotShare) {
  const auto small = Register(4096, 100).value();
  const auto large = Register(4000, 1000).value();
  const auto local = Register(4096, 100, Access::kLocalOnly).value();
  const auto device = Register(4096, 100, Access::kRemoteWrite, MemoryKind::kCuda).value();
  EXPECT_EQ(cache_->size(), 4u);
  EXPECT_NE(small.id, large.id);
  EXPECT_NE(local.id, small.id);
  EXPECT_NE(device.id, small.id);
  // Now inside of the large one, which begins earlier.
  EXPECT_EQ(Register(4200, 10).value().id, large.id);
}

TEST_F(RegistrationCacheTest, SixtyFourBits) {
  const uint64_t base = uint64_t{5} << 30;
  const auto memory = Register(base, (uint64_t{32} << 30) + 3).value();
  EXPECT_EQ(Register(base + (uint64_t{32} << 30), 3).value().id, memory.id);
  EXPECT_NE(Register(base + (uint64_t{32} << 30), 4).value().id, memory.id);
  EXPECT_FALSE(Register(~uint64_t{0} - 10, 100).has_value());
  EXPECT_FALSE(Register(0, 100).has_value());
  EXPECT_FALSE(Register(4096, 0).has_value());
}

TEST_F(RegistrationCacheTest, InPiecesThatOverlap) {
  const uint64_t gib = uint64_t{1} << 30, base = 8 * gib;
  const uint64_t longest = GroupWriteLimit(domains_);
  EXPECT_EQ(longest, kMaxPartBytes);
  for (const uint64_t length : {64 * gib, 64 * gib + 1, 127 * gib, 127 * gib + 1, 500 * gib + 17}) {
    SCOPED_TRACE(length);
    const PieceLayout layout = LayoutOf(length, domains_, longest);
    const auto memory = Register(base, length).value();
    const auto& entry = *cache_->Find(memory);
    EXPECT_EQ(raw_[0]->regions(), layout.count);
    EXPECT_EQ(raw_[1]->regions(), layout.count);
    EXPECT_EQ(entry.pieces == nullptr, length == 64 * gib);
    const RemoteMemory remote = cache_->Describe(memory, entry);
    // Parts that begin and end around seams, and at both ends.
    for (uint64_t seam = 0; seam <= length; seam += 63 * gib) {
      for (const uint64_t begin : {seam - std::min<uint64_t>(seam, 1), seam, seam + 1, length - longest}) {
        if (begin + longest > length) continue;
        for (size_t nic = 0; nic < 2; ++nic) {
          const RemoteMemory::Nic at = remote.At(begin, nic);
          const auto* region = &entry.regions[nic];
          for (uint64_t i = 0; i < layout.count && entry.pieces != nullptr; ++i) {
            if (entry.pieces->regions[i][nic].remote_key == at.remote_key) region = &entry.pieces->regions[i][nic];
          }
          EXPECT_EQ(region->remote_key, at.remote_key);
          EXPECT_EQ(at.remote_address, base + begin);
          EXPECT_GE(at.remote_address, region->remote_address);
          EXPECT_LE(at.remote_address + longest, region->remote_address + region->length);
          const uint64_t key = entry.pieces == nullptr ? region->local_key : entry.pieces->KeyAt(begin, nic);
          EXPECT_EQ(key, region->local_key);
        }
      }
    }
    EXPECT_TRUE(cache_->Release(memory).has_value());
    EXPECT_EQ(raw_[0]->regions() + raw_[1]->regions(), 0u);
  }
  const Error error = Register(base, uint64_t{300'000} * gib).error();
  EXPECT_EQ(error.code, ErrorCode::kOutOfRange);
  EXPECT_NE(error.message.find("and 4096 are possible"), std::string::npos) << error.message;
}

TEST_F(RegistrationCacheTest, SmallestPieces) {
  for (const uint64_t limit : {uint64_t{2}, uint64_t{3}, uint64_t{4095}, uint64_t{8191}, uint64_t{8192}}) {
    simulated::SimulatedDomainOptions options;
    options.limits.max_region_bytes = limit;
    std::vector<std::unique_ptr<Domain>> domains;
    domains.push_back(std::make_unique<SimulatedDomain>(network_, options));
    const uint64_t longest = GroupWriteLimit(domains);
    for (uint64_t length = 1; length < 3 * limit; length += 1 + length / 7) {
      const PieceLayout layout = LayoutOf(length, domains, longest);
      const uint64_t part = std::min(longest, length);
      for (uint64_t begin = 0; begin + part <= length; ++begin) {
        const uint64_t piece = PieceAt(begin, layout.stride, layout.count);
        ASSERT_LE(begin + part, std::min(length, piece * layout.stride + layout.bytes)) << limit << " " << length;
      }
      EXPECT_LE(layout.bytes, limit);
      EXPECT_GE((layout.count - 1) * layout.stride + layout.bytes, length);
    }
  }
}

TEST_F(RegistrationCacheTest, InUseStaysRegistered) {
  const auto memory = Register(4096, 100).value();
  const PeerId peer = raw_[1]->AddPeer(raw_[1]->address()).value();
  std::vector<Completion> completions(4);
  for (int i = 0; i < 1'000 && raw_[1]->peer_state(peer) == PeerState::kConnecting; ++i) {
    clock_.Advance(1);
    raw_[1]->Poll(completions);
  }
  raw_[1]->faults().silent.insert(peer);
  WriteRequest write;
  write.peer = peer;
  write.source = memory.address;
  write.length = 8;
  write.local_key = cache_->Find(memory)->regions[1].local_key;
  ASSERT_EQ(raw_[1]->PostWrite(write), PostResult::kPosted) << raw_[1]->last_error();
  EXPECT_EQ(cache_->Release(memory).error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(cache_->Find(memory), nullptr);
  EXPECT_NE(Register(4096, 100).value().id, memory.id);  // what is about to go is not shared
  raw_[1]->RemovePeer(peer);
  EXPECT_TRUE(cache_->Release(memory).has_value());
}

TEST_F(RegistrationCacheTest, FlatOverManyRounds) {
  for (uint64_t i = 0; i < 100'000; ++i) {
    const auto memory = Register(4096 + i % 7 * 8192, 100 + i % 13).value();
    ASSERT_LT(memory.id & 0x3ffff, 2u);
    ASSERT_TRUE(cache_->Release(memory).has_value());
  }
  EXPECT_EQ(cache_->size(), 0u);
  EXPECT_EQ(raw_[0]->regions(), 0u);
}

}  // namespace
}  // namespace jax_fabric
