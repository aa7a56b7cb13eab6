// QueuePair: a reliable connection of libibverbs, from its making to its end.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_QUEUE_PAIR_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_QUEUE_PAIR_H_

#include <cstdint>

#include "csrc/base/status.h"
#include "csrc/engine/domains/connectx/connectx_address.h"
#include "csrc/engine/domains/connectx/connectx_domain.h"
#include "csrc/engine/domains/connectx/verbs_device.h"

namespace jax_fabric::connectx {

struct QueuePairShape {
  uint32_t depth = 1;         // of its send queue
  uint32_t inline_bytes = 0;  // wanted; lowered where the device refuses
};

class QueuePair {
 public:
  // Can be written to when connected. `receives`: shared with others.
  static Result<QueuePair> Create(VerbsDevice& device, ibv_cq* queue, ibv_srq* receives, const QueuePairShape& shape);

  ibv_qp* get() const { return qp_.get(); }
  uint32_t inline_bytes() const { return inline_bytes_; }
  QueuePairAddress address() const { return {qp_->qp_num, first_packet_}; }

  // Ready to receive and to send.
  Status Connect(const PortAddress& port, const QueuePairAddress& peer, const ConnectXDomainOptions& options);
  // Into the error state: what is posted to it comes back, and nothing comes in any more. False: the device refused.
  bool Fail();
  // The device knows nothing of it any more.
  void Destroy() { qp_.reset(); }

 private:
  QueuePair(VerbsDevice& device, ibv_qp* qp) : device_(&device), qp_(qp, device.verbs().ibv_destroy_qp) {}
  Status Modify(ibv_qp_attr& attributes, int mask, const char* step);

  VerbsDevice* device_;
  Owned<ibv_qp> qp_;
  uint32_t first_packet_ = 0;
  uint32_t inline_bytes_ = 0;
};

}  // namespace jax_fabric::connectx

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_QUEUE_PAIR_H_
