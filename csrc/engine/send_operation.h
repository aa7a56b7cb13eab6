#ifndef JAX_FABRIC_ENGINE_SEND_OPERATION_H_
#define JAX_FABRIC_ENGINE_SEND_OPERATION_H_

#include <cstdint>

#include "csrc/engine/operation.h"

namespace jax_fabric {

// One message, from memory that keeps it until the operation has ended.
class SendOperation final : public Operation {
 public:
  SendOperation() : Operation("send", OnFailure::kWithdraw) {}

  void SetMessage(Peer* peer, const std::byte* source, uint64_t local_key, uint64_t length) {
    stream_ = Stream{};
    stream_.lane = &peer->lanes[0];  // messages use the first NIC only
    stream_.count = 1;
    stream_.source = source;
    stream_.local_key = local_key;
    stream_.length = length;
  }

 protected:
  std::span<Stream> streams() override { return {&stream_, 1}; }
  PostResult Post(Domain& domain, Stream& stream, uint32_t, uint32_t& posted) override {
    posted = 1;
    return domain.PostSend(SendRequest{stream.lane->id, reinterpret_cast<uint64_t>(&stream), stream.source,
                                       stream.local_key, stream.length});
  }

 private:
  Stream stream_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_ENGINE_SEND_OPERATION_H_
