// Both sides of a hand-over of descriptors, against somebody who does not know the secret but sees all that is said.
#include <optional>
#include <string_view>

#include "csrc/engine/domains/local/hand_over.h"
#include "csrc/fuzz/fuzz_input.h"

using jax_fabric::ByteView;
using jax_fabric::FabricKey;
using jax_fabric::Secret;
using jax_fabric::fuzz::FuzzInput;
using jax_fabric::fuzz::Require;
namespace local = jax_fabric::local;

namespace {

// Bytes of the input over a packet that was overheard, and any length.
template <typename T>
std::vector<std::byte> Garble(const T& overheard, FuzzInput& input) {
  auto packet = input.Bytes(0);
  const ByteView view = std::as_bytes(std::span(&overheard, 1));
  packet.assign(view.begin(), view.end());
  for (uint8_t changes = input.Byte() % 4; changes > 0; --changes) {
    const uint8_t at = input.Byte();
    packet[at % packet.size()] ^= static_cast<std::byte>(input.Byte());
  }
  const uint8_t length = input.Byte();
  if (length % 4 == 0) packet.resize(length);
  return packet;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto key = [] {
    constexpr std::string_view kSecret = "that the fuzzer does not know";
    return FabricKey::Create(Secret::From(std::as_bytes(std::span(kSecret))).value()).value();
  }();
  FuzzInput input(data, size);
  // A conversation that it has overheard.
  local::DescriptorRequest request;
  request.incarnation = 1;
  const auto challenge = local::MakeChallenge(request, key.get()).value();
  const ByteView challenge_bytes = std::as_bytes(std::span(&challenge, 1));
  const auto proof = local::AnswerChallenge(request, challenge_bytes, key.get()).value();
  const ByteView proof_bytes = std::as_bytes(std::span(&proof, 1));
  Require(local::CheckProof(request, challenge, proof_bytes, key.get()).has_value(), "who knows the secret gets in");

  // To a server: a request and what it makes of the proof.
  if (const auto own = local::ParseRequest(Garble(request, input)); own.has_value()) {
    const auto fresh = local::MakeChallenge(*own, key.get()).value();
    Require(!local::CheckProof(*own, fresh, Garble(proof, input), key.get()).has_value(),
            "proofs are of one challenge");
    Require(!local::CheckProof(*own, fresh, input.Bytes(input.Byte()), key.get()).has_value(),
            "proofs are not guessed");
  }
  // To a client: in place of the challenge, and as the reply.
  local::DescriptorRequest other = request;
  other.nonce[0] = std::byte{1};
  Require(!local::AnswerChallenge(other, Garble(challenge, input), key.get()).has_value(),
          "challenges are of one request");
  Require(!local::AnswerChallenge(other, input.Bytes(input.Byte()), key.get()).has_value(),
          "challenges are not guessed");
  local::DescriptorReply reply;
  reply.code = input.Byte() % 20;
  const auto text = input.Bytes(sizeof(reply.message));  // without a zero at its end, perhaps
  std::memcpy(reply.message, text.data(), text.size());
  const auto parsed = local::ParseReply(Garble(reply, input));
  Require(parsed.has_value() || parsed.error().code != jax_fabric::ErrorCode::kOk, "a refusal has a code");
  const auto all = input.Rest();
  static_cast<void>(local::ParseReply(all));
  static_cast<void>(local::ParseRequest(all));
  return 0;
}
