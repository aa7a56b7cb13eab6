#include "csrc/engine/domains/conformance/direct_node.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace jax_fabric::conformance {
namespace {

// splitmix64: neighbouring positions and seeds have nothing in common.
uint64_t PatternWord(uint64_t seed, uint64_t word) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + word + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Patterns are made and compared in blocks: byte by byte, sanitizers would make the suite a hundred times slower.
using Block = std::array<uint64_t, 512>;

Block PatternBlock(uint64_t seed, uint64_t offset) {
  Block block;
  for (size_t i = 0; i < block.size(); ++i) block[i] = PatternWord(seed, offset / 8 + i);
  return block;
}

uint64_t Compare(const std::byte* seen, const Block& block, uint64_t length) {
  if (std::memcmp(seen, block.data(), length) == 0) return kNoMismatch;
  const auto* expected = reinterpret_cast<const std::byte*>(block.data());
  return static_cast<uint64_t>(std::mismatch(seen, seen + length, expected).first - seen);
}

template <typename Request, typename Post>
PostOutcome PostAll(std::span<const Request> requests, const Domain& domain, Post post) {
  PostOutcome outcome;
  for (const Request& request : requests) {
    outcome.last = post(request);
    if (outcome.last != PostResult::kPosted) break;
    ++outcome.posted;
  }
  if (outcome.last == PostResult::kRejected) outcome.error = domain.last_error();
  return outcome;
}

}  // namespace

Result<std::unique_ptr<DirectNode>> DirectNode::Create(std::shared_ptr<ConformanceFabric> fabric,
                                                       const DomainShape& shape) {
  JF_ASSIGN_OR_RETURN(auto domain, fabric->CreateDomain(shape));
  return std::unique_ptr<DirectNode>(new DirectNode(std::move(fabric), std::move(domain)));
}

DirectNode::DirectNode(std::shared_ptr<ConformanceFabric> fabric, std::unique_ptr<Domain> domain)
    : fabric_(std::move(fabric)), domain_(std::move(domain)) {}

Bytes DirectNode::Address() {
  const ByteView view = domain_->address();
  return Bytes(view.begin(), view.end());
}

Result<uint64_t> DirectNode::Allocate(uint64_t length) {
  JF_ASSIGN_OR_RETURN(FabricMemory memory, fabric_->Allocate(length));
  memory_.push_back(memory);
  return reinterpret_cast<uint64_t>(memory.address);
}

Result<MemoryRegion> DirectNode::Register(uint64_t address, uint64_t length, Access access) {
  return domain_->RegisterMemory(reinterpret_cast<void*>(address), length, MemoryKind::kHost, access);
}

PostOutcome DirectNode::PostWrites(std::span<const WriteRequest> requests) {
  return PostAll(requests, *domain_, [&](const auto& request) { return domain_->PostWrite(request); });
}
PostOutcome DirectNode::PostSends(std::span<const SendRequest> requests) {
  return PostAll(requests, *domain_, [&](const auto& request) { return domain_->PostSend(request); });
}
PostOutcome DirectNode::PostReceives(std::span<const ReceiveRequest> requests) {
  return PostAll(requests, *domain_, [&](const auto& request) { return domain_->PostReceive(request); });
}

std::vector<Completion> DirectNode::Poll() {
  fabric_->Step();
  std::array<Completion, 64> completions;
  const size_t count = domain_->Poll(completions);
  return {completions.begin(), completions.begin() + static_cast<ptrdiff_t>(count)};
}

void DirectNode::Fill(uint64_t address, uint64_t length, uint64_t seed) {
  auto* bytes = reinterpret_cast<std::byte*>(address);
  for (uint64_t at = 0; at < length; at += sizeof(Block)) {
    const Block block = PatternBlock(seed, at);
    std::memcpy(bytes + at, block.data(), std::min<uint64_t>(sizeof(Block), length - at));
  }
}

void DirectNode::FillByte(uint64_t address, uint64_t length, uint8_t value) {
  if (length > 0) std::memset(reinterpret_cast<void*>(address), value, length);
}

uint64_t DirectNode::Check(uint64_t address, uint64_t length, uint64_t seed) {
  const auto* bytes = reinterpret_cast<const std::byte*>(address);
  for (uint64_t at = 0; at < length; at += sizeof(Block)) {
    const Block block = PatternBlock(seed, at);
    const uint64_t mismatch = Compare(bytes + at, block, std::min<uint64_t>(sizeof(Block), length - at));
    if (mismatch != kNoMismatch) return at + mismatch;
  }
  return kNoMismatch;
}

uint64_t DirectNode::CheckByte(uint64_t address, uint64_t length, uint8_t value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(address);
  Block block;
  std::memset(block.data(), value, sizeof(Block));
  for (uint64_t at = 0; at < length; at += sizeof(Block)) {
    const uint64_t mismatch = Compare(bytes + at, block, std::min<uint64_t>(sizeof(Block), length - at));
    if (mismatch != kNoMismatch) return at + mismatch;
  }
  return kNoMismatch;
}

uint64_t DirectNode::MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) {
  return reinterpret_cast<uint64_t>(domain_->MapRemote(peer, remote_address, remote_key, length));
}

}  // namespace jax_fabric::conformance
