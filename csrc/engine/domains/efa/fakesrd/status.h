// Status codes of EFA's completions: what libfabric reports as the provider's error number.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_STATUS_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_STATUS_H_

#include <infiniband/verbs.h>

#include <cstdint>

namespace jax_fabric::fake_srd {

enum class Status : uint32_t {
  kOk = 0,
  kFlushed = 1,
  kUnsupported = 3,
  kBadLocalKey = 5,
  kBadLength = 6,
  kBadRemoteAddress = 7,  // or key, or access
  kBadQueuePair = 9,      // there is none with that number and key
  kReceiverNotReady = 10,
  kReceiveTooShort = 11,
  kUnresponsive = 13,  // it has answered before
  kUnknownPeer = 14,   // the target has no route back
  kUnreachable = 15,   // it has never answered
};

// As libibverbs' provider for EFA says it.
inline ibv_wc_status VerbsStatus(Status status) {
  switch (status) {
    case Status::kOk:
      return IBV_WC_SUCCESS;
    case Status::kFlushed:
      return IBV_WC_WR_FLUSH_ERR;
    case Status::kUnsupported:
      return IBV_WC_LOC_QP_OP_ERR;
    case Status::kBadLocalKey:
      return IBV_WC_LOC_PROT_ERR;
    case Status::kBadLength:
      return IBV_WC_LOC_LEN_ERR;
    case Status::kBadRemoteAddress:
      return IBV_WC_REM_ACCESS_ERR;
    case Status::kBadQueuePair:
      return IBV_WC_REM_INV_RD_REQ_ERR;
    case Status::kReceiverNotReady:
      return IBV_WC_RNR_RETRY_EXC_ERR;
    case Status::kReceiveTooShort:
      return IBV_WC_REM_INV_REQ_ERR;
    case Status::kUnresponsive:
    case Status::kUnreachable:
      return IBV_WC_RESP_TIMEOUT_ERR;
    case Status::kUnknownPeer:
      return IBV_WC_REM_OP_ERR;
  }
  return IBV_WC_GENERAL_ERR;
}

}  // namespace jax_fabric::fake_srd

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_STATUS_H_
