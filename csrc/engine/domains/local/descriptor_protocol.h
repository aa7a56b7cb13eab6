// How a process asks another for file descriptors, on a SOCK_SEQPACKET connection to an abstract Unix socket: request,
// challenge, proof, and a reply with the descriptors by SCM_RIGHTS. Nobody outside of the machine can connect; any user
// of it can, so both sides insist on the same user (SO_PEERCRED) and on the fabric's secret (hand_over.h).
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_DESCRIPTOR_PROTOCOL_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_DESCRIPTOR_PROTOCOL_H_

#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace jax_fabric::local {

using Nonce = std::array<std::byte, 16>;
using Proof = std::array<std::byte, 32>;

struct DescriptorRequest {
  static constexpr uint32_t kMagic = 0x5244464a;  // "JFDR"
  enum Kind : uint32_t { kMailbox = 1, kMemory = 2 };

  uint32_t magic = kMagic;
  uint32_t kind = kMailbox;
  uint64_t incarnation = 0;  // of the domain
  uint64_t key = 0;          // kMemory: of a region that peers may write
  Nonce nonce{};             // the client's, new for each request
};

// The server knows the secret, and wants to see that the client does.
struct DescriptorChallenge {
  static constexpr uint32_t kMagic = 0x4344464a;  // "JFDC"

  uint32_t magic = kMagic;
  uint32_t secret_fingerprint = 0;  // the server's, for messages
  Nonce nonce{};                    // the server's
  Proof proof{};
};

struct DescriptorProof {
  static constexpr uint32_t kMagic = 0x5044464a;  // "JFDP"

  uint32_t magic = kMagic;
  uint32_t secret_fingerprint = 0;  // the client's, for messages
  Proof proof{};
};

// Brings two descriptors for kMailbox (memory, doorbell), one for kMemory, none with an error, which may come in place
// of the challenge, too.
struct DescriptorReply {
  static constexpr uint32_t kMagic = 0x5344464a;  // "JFDS"

  uint32_t magic = kMagic;
  uint32_t code = 0;  // ErrorCode
  uint64_t memory_id = 0;
  char message[240] = {};
};

inline socklen_t MakeAbstractName(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t length = name.size() < sizeof(address.sun_path) - 1 ? name.size() : sizeof(address.sun_path) - 1;
  std::memcpy(address.sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_DESCRIPTOR_PROTOCOL_H_
