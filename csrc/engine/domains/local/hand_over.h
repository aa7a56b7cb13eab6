// What both sides of a hand-over of descriptors prove to each other; without sockets, so that everything that comes
// from a peer is looked at here. Each proof covers the request and both sides' nonces: a recorded one is worth nothing.
// Without a key (a fabric without a secret) proofs are zeros, and only such sides understand each other.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_HAND_OVER_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_HAND_OVER_H_

#include <optional>

#include "csrc/base/fabric_key.h"
#include "csrc/base/status.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/domains/local/descriptor_protocol.h"

namespace jax_fabric::local {

// --- client
Status SetNonce(DescriptorRequest& request);
// The proof to send; an error if the server does not know the secret, or if the packet is its refusal.
Result<DescriptorProof> AnswerChallenge(const DescriptorRequest& request, ByteView packet, const FabricKey* key);
Result<DescriptorReply> ParseReply(ByteView packet);

// --- server
// Nothing: not a request at all.
std::optional<DescriptorRequest> ParseRequest(ByteView packet);
Result<DescriptorChallenge> MakeChallenge(const DescriptorRequest& request, const FabricKey* key);
// Whether the client may have what it asks for.
Status CheckProof(const DescriptorRequest& request, const DescriptorChallenge& challenge, ByteView packet,
                  const FabricKey* key);
DescriptorReply Refusal(const Error& error);

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_HAND_OVER_H_
