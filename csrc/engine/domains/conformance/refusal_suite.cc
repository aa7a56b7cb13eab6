// Requests that must be refused, with words, without a byte written anywhere.
#include <string>
#include <utility>
#include <vector>

#include "csrc/engine/domains/conformance/conformance_suite.h"

namespace jax_fabric::conformance {
namespace {

constexpr uint64_t kLength = 4096;

class RefusalCase {
 public:
  RefusalCase(std::string name, WriteRequest request) : name(std::move(name)), request(request) {}
  std::string name;
  WriteRequest request;
};

WriteRequest With(WriteRequest write, uint64_t WriteRequest::* field, uint64_t value) {
  write.*field = value;
  return write;
}

TEST_P(DomainConformance, BadWritesAreRefusedAndTouchNothing) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const Buffer source = MakeBuffer(0, kLength, Access::kLocalOnly, 0x11);
  // Three stretches of one allocation; only the middle one may be written to.
  const uint64_t all = nodes_[1]->Allocate(3 * kLength).value();
  nodes_[1]->FillByte(all, 3 * kLength, 0xa5);
  Buffer target{all + kLength, kLength, nodes_[1]->Register(all + kLength, kLength, Access::kRemoteWrite).value()};
  const Buffer closed = MakeBuffer(1, kLength, Access::kLocalOnly);

  const WriteRequest good = MakeWrite(0, 1, source, target, 64, 0, 64, 77);
  const uint64_t begin = target.region.remote_address;
  std::vector<RefusalCase> cases;
  for (const uint64_t flip : {1ull, 1ull << 19, 1ull << 20, 1ull << 40, 1ull << 63}) {
    cases.emplace_back(fmt::format("key with the bit {:#x} flipped", flip),
                       With(good, &WriteRequest::remote_key, good.remote_key ^ flip));
  }
  cases.emplace_back("key 0", With(good, &WriteRequest::remote_key, 0));
  cases.emplace_back("key of all ones", With(good, &WriteRequest::remote_key, ~uint64_t{0}));
  cases.emplace_back("memory without remote write", MakeWrite(0, 1, source, closed, 64, 0, 0, 77));
  cases.emplace_back("one byte too far", With(good, &WriteRequest::remote_address, begin + kLength - good.length + 1));
  cases.emplace_back("one byte too early", With(good, &WriteRequest::remote_address, begin - 1));
  cases.emplace_back("one byte too long", MakeWrite(0, 1, source, target, kLength, 0, 1, 77));
  cases.emplace_back("an address that wraps around", With(good, &WriteRequest::remote_address, ~uint64_t{0} - 31));
  if (GetParam().checks_empty_writes) {
    cases.emplace_back("an empty write beyond the end",
                       With(With(good, &WriteRequest::remote_address, begin + kLength + 1), &WriteRequest::length, 0));
  }
  cases.emplace_back("a source key that was never given",
                     With(good, &WriteRequest::local_key, good.local_key ^ 1ull << 33));
  WriteRequest outside = good;
  outside.source = reinterpret_cast<const void*>(source.address + kLength - 63);
  cases.emplace_back("a source that ends one byte outside", outside);

  for (const RefusalCase& refused : cases) {
    SCOPED_TRACE(refused.name);
    ExpectRefused(0, refused.request, refused.name);
    if (!GetParam().survives_bad_writes) break;
  }
  PollForMore();
  EXPECT_TRUE(nodes_[1].immediates.empty());
  EXPECT_EQ(nodes_[1]->CheckByte(all, 3 * kLength, 0xa5), kNoMismatch);
  EXPECT_EQ(nodes_[1]->CheckByte(closed.address, kLength, 0xa5), kNoMismatch);
  if (!GetParam().survives_bad_writes) return;
  Post(0, {&good, 1});
  Until("the good write is there", [&] { return nodes_[1].immediates.size() == 1; });
  EXPECT_EQ(nodes_[1]->CheckByte(all + kLength + 64, 64, 0x11), kNoMismatch);
}

TEST_P(DomainConformance, DeregisteredMemoryIsRefused) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const Buffer source = MakeBuffer(0, kLength, Access::kLocalOnly);
  Buffer target = MakeBuffer(1, kLength);
  const WriteRequest old = MakeWrite(0, 1, source, target, 64, 0, 0, 3);
  ASSERT_TRUE(nodes_[1]->Deregister(target.region).has_value());
  EXPECT_FALSE(nodes_[1]->Deregister(target.region).has_value());
  ExpectRefused(0, old, "deregistered memory");
  if (!GetParam().survives_bad_writes) return;
  // The same memory again: another key, and the old one stays dead.
  target.region = nodes_[1]->Register(target.address, kLength, Access::kRemoteWrite).value();
  EXPECT_NE(target.region.remote_key, old.remote_key);
  ExpectRefused(0, old, "a key of an earlier registration");
  const WriteRequest fresh = MakeWrite(0, 1, source, target, 64, 0, 0, 4);
  Post(0, {&fresh, 1});
  Until("the good write is there", [&] { return nodes_[1].immediates.size() == 1; });
  // A deregistered source.
  ASSERT_TRUE(UntilComplete());
  ASSERT_TRUE(nodes_[0]->Deregister(source.region).has_value());
  ExpectRefused(0, fresh, "a deregistered source");
}

TEST_P(DomainConformance, SourceInUseIsNotDeregistered) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const uint64_t length = GetParam().largest_write;
  const Buffer source = MakeBuffer(0, length, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, length);
  const WriteRequest write = MakeWrite(0, 1, source, target, length);
  Post(0, {&write, 1});
  const Status early = nodes_[0]->Deregister(source.region);
  // A node with a driver of its own may have been quick enough.
  if (GetParam().placement == NodePlacement::kOneThread) {
    EXPECT_FALSE(early.has_value());
  }
  if (!early.has_value()) {
    EXPECT_EQ(early.error().code, ErrorCode::kFailedPrecondition);
  }
  UntilComplete();
  if (!early.has_value()) {
    EXPECT_TRUE(nodes_[0]->Deregister(source.region).has_value());
  }
}

TEST_P(DomainConformance, UnknownPeersAndDamagedAddressesAreRefused) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const Buffer source = MakeBuffer(0, kLength, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, kLength);
  for (const PeerId unknown : {nodes_[0].peers[1] + 1000, Completion::kUnknownPeer}) {
    WriteRequest write = MakeWrite(0, 1, source, target, 8);
    write.peer = unknown;
    const PostOutcome outcome = nodes_[0]->PostWrites({&write, 1});
    EXPECT_EQ(outcome.last, PostResult::kRejected);
    EXPECT_FALSE(outcome.error.empty());
  }
  const Bytes address = nodes_[1]->Address();
  EXPECT_EQ(nodes_[0]->AddPeer(address).value(), nodes_[0].peers[1]);
  EXPECT_FALSE(nodes_[0]->AddPeer({}).has_value());
  for (size_t n = 0; n < address.size(); n += 5) {
    EXPECT_FALSE(nodes_[0]->AddPeer(ByteView(address).first(n)).has_value()) << n;
    Bytes flipped = address;
    flipped[n] ^= std::byte{4};
    EXPECT_FALSE(nodes_[0]->AddPeer(flipped).has_value()) << n;
  }
}

TEST_P(DomainConformance, MappedMemoryIsTheMemory) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes(2));
  const Buffer source = MakeBuffer(0, kLength, Access::kLocalOnly);
  const Buffer target = MakeBuffer(1, kLength);
  const PeerId peer = nodes_[0].peers[1];
  const uint64_t begin = target.region.remote_address, key = target.region.remote_key;
  const uint64_t mapped = nodes_[0]->MapRemote(peer, begin + 100, key, 200);
  EXPECT_EQ(nodes_[0]->MapRemote(peer, begin + kLength - 100, key, 101), 0u);
  EXPECT_EQ(nodes_[0]->MapRemote(peer, begin, key ^ 1, 8), 0u);
  EXPECT_EQ(nodes_[0]->MapRemote(peer + 1000, begin, key, 8), 0u);
  if (mapped == 0) GTEST_SKIP() << "not reachable by loads and stores";
  nodes_[0]->Fill(mapped, 200, 8);
  const WriteRequest signal = MakeWrite(0, 1, source, target, 0, 0, 0, 1);
  Post(0, {&signal, 1});
  Until("the immediate is there", [&] { return nodes_[1].immediates.size() == 1; });
  EXPECT_EQ(nodes_[1]->Check(target.address + 100, 200, 8), kNoMismatch);
  EXPECT_EQ(nodes_[1]->CheckByte(target.address, 100, 0xa5), kNoMismatch);
  EXPECT_EQ(nodes_[1]->CheckByte(target.address + 300, kLength - 300, 0xa5), kNoMismatch);
}

}  // namespace
}  // namespace jax_fabric::conformance
