// Messages against a model: a set of what was genuine and has come.
#include <set>
#include <string_view>
#include <utility>

#include "csrc/engine/message_authenticator.h"
#include "csrc/fuzz/fuzz_input.h"

using jax_fabric::FabricKey;
using jax_fabric::MessageAuthenticator;
using jax_fabric::Secret;
using jax_fabric::fuzz::FuzzInput;
using jax_fabric::fuzz::Require;
using Verdict = MessageAuthenticator::Verdict;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto key = [] {
    constexpr std::string_view kSecret = "that the fuzzer does not know";
    return FabricKey::Create(Secret::From(std::as_bytes(std::span(kSecret))).value()).value();
  }();
  constexpr uint64_t kReceiver = 77;
  FuzzInput input(data, size);
  MessageAuthenticator receiver(key, kReceiver);
  std::set<std::pair<uint64_t, uint64_t>> seen;
  while (!input.done()) {
    const uint8_t kind = input.Byte();
    const uint8_t length = input.Byte();
    if (kind % 4 == 0) {
      auto packet = input.Bytes(length);
      Require(receiver.Open(packet, kind / 4) == Verdict::kForged, "what comes without the secret is a forgery");
      continue;
    }
    // A genuine one, and perhaps one bit of it is changed.
    const uint64_t sender = 1 + kind / 4 % 4;
    // Near to others mostly, sometimes far away.
    uint64_t sequence = input.Byte();
    if (kind / 16 % 4 == 0) sequence <<= input.Byte() % 57;
    auto packet = input.Bytes(length % 32 + MessageAuthenticator::kTrailerBytes);
    MessageAuthenticator(key, sender).Seal(packet, kReceiver, sequence);
    if (kind % 4 == 1) {
      const size_t bit = input.Byte() * packet.size() / 32 % (packet.size() * 8);
      packet[bit / 8] ^= std::byte{1} << (bit % 8);
      Require(receiver.Open(packet, 0) == Verdict::kForged, "every bit counts");
      continue;
    }
    if (kind % 4 == 2) {
      auto copy = packet;
      Require(receiver.Open(copy, sender + 1) == Verdict::kForged, "nobody speaks for somebody else");
    }
    const bool is_new = seen.emplace(sender, sequence).second;
    Require(receiver.Open(packet, sender) == (is_new ? Verdict::kGenuine : Verdict::kReplayed),
            "a genuine message is taken once");
  }
  return 0;
}
