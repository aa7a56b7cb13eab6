// DatagramEndpoint: the unreliable datagrams that handshakes and heartbeats go by. Each may get lost.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DATAGRAM_ENDPOINT_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DATAGRAM_ENDPOINT_H_

#include <array>
#include <cstdint>
#include <memory>

#include "csrc/base/status.h"
#include "csrc/engine/domains/connectx/buffer_pool.h"
#include "csrc/engine/domains/connectx/connectx_address.h"
#include "csrc/engine/domains/connectx/verbs_device.h"

namespace jax_fabric::connectx {

struct DatagramRoute {
  std::shared_ptr<ibv_ah> handle;
  uint32_t queue_pair = 0;
  uint32_t key = 0;
};

class DatagramEndpoint {
 public:
  static constexpr size_t kMaxBytes = 1024;  // the smallest MTU that is served
  static constexpr uint32_t kReceives = 256;
  static constexpr uint32_t kSends = 64;

  // Completions of both kinds go to `queue`.
  static Result<std::unique_ptr<DatagramEndpoint>> Create(VerbsDevice& device, ibv_cq* queue, uint32_t key);

  uint32_t queue_pair() const { return qp_->qp_num; }
  uint32_t key() const { return key_; }

  Result<DatagramRoute> RouteTo(const ConnectXAddress& peer);
  // False: it is lost, since as many are on the way as can be.
  bool Send(const DatagramRoute& route, ByteView bytes);
  void OnSent(uint32_t buffer) {
    routes_[buffer] = nullptr;
    sends_.Return(buffer);
    --sending_;
  }
  bool idle() const { return sending_ == 0; }
  // What came in; a view until Repost.
  ByteView Received(uint32_t buffer, uint32_t bytes) const;
  void Repost(uint32_t buffer);

 private:
  static constexpr size_t kGlobalRouteBytes = 40;  // in front of what came

  DatagramEndpoint(VerbsDevice& device, uint32_t key);
  Status Start(ibv_cq* queue);

  VerbsDevice& device_;
  const uint32_t key_;
  uint32_t sending_ = 0;
  // Of what is on the way, by buffer. A handle that is destroyed before its datagrams are complete fails them, and then
  // the queue pair stands still: rxe of Linux 6.12 looks for it when it sends, which is later than the post.
  std::array<std::shared_ptr<ibv_ah>, kSends> routes_;
  BufferPool sends_;
  BufferPool receives_;
  Owned<ibv_qp> qp_;
};

}  // namespace jax_fabric::connectx

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DATAGRAM_ENDPOINT_H_
