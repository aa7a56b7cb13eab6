#include "csrc/engine/domains/local/hand_over.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <type_traits>

#include "csrc/base/random_bytes.h"

namespace jax_fabric::local {
namespace {

constexpr auto kPurpose = FabricKey::Purpose::kHandOver;

// What a proof covers. No padding: it is hashed as it lies in memory.
struct Statement {
  uint64_t server = 0;  // 1: made by the server, 0: by the client
  DescriptorRequest request;
  Nonce server_nonce{};
};
static_assert(std::has_unique_object_representations_v<DescriptorRequest>);
static_assert(sizeof(Statement) == 8 + sizeof(DescriptorRequest) + sizeof(Nonce));

ByteView BytesOf(const Statement& statement) { return std::as_bytes(std::span(&statement, 1)); }

Proof Prove(const Statement& statement, const FabricKey* key) {
  Proof proof{};
  if (key != nullptr) key->Sign(kPurpose, BytesOf(statement), proof);
  return proof;
}

bool IsProven(const Statement& statement, uint32_t peer_fingerprint, const Proof& proof, const FabricKey* key) {
  if (key == nullptr) return peer_fingerprint == 0;
  return key->Verify(kPurpose, BytesOf(statement), proof);
}

// The packet as one of the structs above, if it has its size and its magic number.
template <typename T>
std::optional<T> Parse(ByteView packet) {
  T value;
  if (packet.size() != sizeof(T)) return std::nullopt;
  std::memcpy(&value, packet.data(), sizeof(T));
  if (value.magic != T::kMagic) return std::nullopt;
  return value;
}

tl::unexpected<Error> WrongSecret(std::string_view side, uint32_t there, const FabricKey* key) {
  return MakeError(ErrorCode::kPermissionDenied,
                   "the {} of this connection does not know this fabric's secret (there: {}; here: {}): give every "
                   "process the same secret",
                   side, DescribeSecret(there), DescribeSecret(key));
}

}  // namespace

Status SetNonce(DescriptorRequest& request) { return FillRandom(request.nonce); }

Result<DescriptorProof> AnswerChallenge(const DescriptorRequest& request, ByteView packet, const FabricKey* key) {
  const auto challenge = Parse<DescriptorChallenge>(packet);
  if (!challenge) {
    JF_RETURN_IF_ERROR(ParseReply(packet));
    return MakeError(ErrorCode::kDataLoss, "an answer without a challenge: not the jax_fabric that this process runs");
  }
  Statement statement{1, request, challenge->nonce};
  if (!IsProven(statement, challenge->secret_fingerprint, challenge->proof, key)) {
    return WrongSecret("server", challenge->secret_fingerprint, key);
  }
  statement.server = 0;
  DescriptorProof proof;
  proof.secret_fingerprint = key == nullptr ? 0 : key->fingerprint();
  proof.proof = Prove(statement, key);
  return proof;
}

Result<DescriptorReply> ParseReply(ByteView packet) {
  const auto reply = Parse<DescriptorReply>(packet);
  if (!reply) return MakeError(ErrorCode::kUnavailable, "the connection was closed without an answer");
  if (reply->code == 0) return *reply;
  const std::string text(reply->message, strnlen(reply->message, sizeof(reply->message)));
  return MakeError(static_cast<ErrorCode>(std::min<uint32_t>(reply->code, 15)), "refused: {}", text);
}

std::optional<DescriptorRequest> ParseRequest(ByteView packet) { return Parse<DescriptorRequest>(packet); }

Result<DescriptorChallenge> MakeChallenge(const DescriptorRequest& request, const FabricKey* key) {
  DescriptorChallenge challenge;
  challenge.secret_fingerprint = key == nullptr ? 0 : key->fingerprint();
  JF_RETURN_IF_ERROR(FillRandom(challenge.nonce));
  challenge.proof = Prove({1, request, challenge.nonce}, key);
  return challenge;
}

Status CheckProof(const DescriptorRequest& request, const DescriptorChallenge& challenge, ByteView packet,
                  const FabricKey* key) {
  const auto proof = Parse<DescriptorProof>(packet);
  if (!proof) return MakeError(ErrorCode::kInvalidArgument, "no proof of the fabric's secret");
  if (IsProven({0, request, challenge.nonce}, proof->secret_fingerprint, proof->proof, key)) return {};
  return WrongSecret("client", proof->secret_fingerprint, key);
}

DescriptorReply Refusal(const Error& error) {
  DescriptorReply reply;
  reply.code = static_cast<uint32_t>(error.code);
  std::snprintf(reply.message, sizeof(reply.message), "%s", error.message.c_str());
  return reply;
}

}  // namespace jax_fabric::local
