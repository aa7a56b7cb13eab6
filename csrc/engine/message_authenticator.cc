#include "csrc/engine/message_authenticator.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace jax_fabric {
namespace {

// Trailer: sender's incarnation, sequence number, tag. The tag is made with the receiver's incarnation in its place, so
// that everything that it covers lies in one piece.
constexpr size_t kTagBytes = 16;
constexpr size_t kTagOffset = 16;  // in the trailer

using Tag = std::array<std::byte, kTagBytes>;

// What the tag covers.
std::span<std::byte> Covered(std::span<std::byte> packet) {
  return packet.first(packet.size() - kTagBytes + sizeof(uint64_t));
}

}  // namespace

static_assert(MessageAuthenticator::kTrailerBytes == kTagOffset + kTagBytes);

void MessageAuthenticator::Seal(std::span<std::byte> packet, uint64_t receiver_incarnation, uint64_t sequence) const {
  std::byte* trailer = packet.data() + packet.size() - kTrailerBytes;
  const std::array<uint64_t, 3> words = {own_incarnation_, sequence, receiver_incarnation};
  std::memcpy(trailer, words.data(), sizeof(words));
  Tag tag;
  key_->Sign(FabricKey::Purpose::kMessage, Covered(packet), tag);
  std::copy(tag.begin(), tag.end(), trailer + kTagOffset);
}

MessageAuthenticator::Verdict MessageAuthenticator::Open(std::span<std::byte> packet, uint64_t expected_sender) {
  if (packet.size() < kTrailerBytes) return Verdict::kForged;
  std::byte* trailer = packet.data() + packet.size() - kTrailerBytes;
  std::array<uint64_t, 2> words;
  std::memcpy(words.data(), trailer, sizeof(words));
  const auto [sender, sequence] = words;
  if (expected_sender != 0 && sender != expected_sender) return Verdict::kForged;
  Tag tag;
  std::copy_n(trailer + kTagOffset, tag.size(), tag.begin());
  std::memcpy(trailer + kTagOffset, &own_incarnation_, sizeof(own_incarnation_));
  if (!key_->Verify(FabricKey::Purpose::kMessage, Covered(packet), tag)) return Verdict::kForged;
  return senders_[sender].Accept(sequence) ? Verdict::kGenuine : Verdict::kReplayed;
}

}  // namespace jax_fabric
