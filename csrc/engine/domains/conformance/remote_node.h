// The suite's end of a node that runs in a thread or process of its own.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_REMOTE_NODE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_REMOTE_NODE_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>

#include "csrc/base/unique_fd.h"
#include "csrc/engine/domains/conformance/conformance_fabric.h"
#include "csrc/engine/domains/conformance/node.h"
#include "csrc/engine/domains/conformance/node_protocol.h"

namespace jax_fabric::conformance {

class RemoteNode final : public Node {
 public:
  static Result<std::unique_ptr<RemoteNode>> StartThread(const std::string& fabric, const DomainShape& shape);
  // Runs this very program again as `--conformance_node <fabric> <socket> <shape>`: see conformance_main.cc.
  static Result<std::unique_ptr<RemoteNode>> StartProcess(const std::string& fabric, const DomainShape& shape);
  ~RemoteNode() override;

  Bytes Address() override;
  DomainLimits Limits() override;
  Result<PeerId> AddPeer(ByteView address) override;
  PeerState State(PeerId peer) override;
  void RemovePeer(PeerId peer) override;
  std::string LastError() override;
  Result<uint64_t> Allocate(uint64_t length) override;
  Result<MemoryRegion> Register(uint64_t address, uint64_t length, Access access) override;
  Status Deregister(const MemoryRegion& region) override;
  PostOutcome PostWrites(std::span<const WriteRequest> requests) override;
  PostOutcome PostSends(std::span<const SendRequest> requests) override;
  PostOutcome PostReceives(std::span<const ReceiveRequest> requests) override;
  std::vector<Completion> Poll() override;
  void Fill(uint64_t address, uint64_t length, uint64_t seed) override;
  void FillByte(uint64_t address, uint64_t length, uint8_t value) override;
  uint64_t Check(uint64_t address, uint64_t length, uint64_t seed) override;
  uint64_t CheckByte(uint64_t address, uint64_t length, uint8_t value) override;
  uint64_t MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) override;
  void Kill() override;

  pid_t pid() const { return pid_; }

 private:
  explicit RemoteNode(UniqueFd socket) : socket_(std::move(socket)) {}
  Status AwaitStart();
  // The answer; a node that died unexpectedly fails the test and answers with zeros.
  Parcel Call(Command command, const Parcel& arguments);
  PostOutcome CallPost(Command command, const Parcel& arguments);

  UniqueFd socket_;
  std::thread thread_;
  pid_t pid_ = -1;
  bool dead_ = false;  // as has been said
};

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_REMOTE_NODE_H_
