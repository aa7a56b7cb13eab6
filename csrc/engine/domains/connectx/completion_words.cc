#include "csrc/engine/domains/connectx/completion_words.h"

namespace jax_fabric::connectx {

StatusMeaning MeaningOf(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
      return {ErrorCode::kPermissionDenied, ErrorCode::kAborted,
              "the source is not (or not any more) inside of memory that is registered here"};
    case IBV_WC_REM_ACCESS_ERR:
      return {ErrorCode::kPermissionDenied, ErrorCode::kAborted,
              "the peer has no memory registered with this key (any more), or the range is not inside of it"};
    case IBV_WC_REM_INV_REQ_ERR:
      return {ErrorCode::kInvalidArgument, ErrorCode::kAborted, "the peer's NIC refuses such a request"};
    case IBV_WC_REM_OP_ERR:
      return {ErrorCode::kInternal, ErrorCode::kAborted, "the peer's NIC could not do it"};
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      return {ErrorCode::kUnavailable, ErrorCode::kUnavailable,
              "no acknowledgement came: the peer has died or closed its end, or the network loses packets"};
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return {ErrorCode::kResourceExhausted, ErrorCode::kAborted, "the peer had no receive left for it: is it polled?"};
    case IBV_WC_WR_FLUSH_ERR:
    case IBV_WC_FATAL_ERR:
      return {ErrorCode::kUnavailable, ErrorCode::kUnavailable, "the device has ended the connection"};
    default:
      return {};
  }
}

}  // namespace jax_fabric::connectx
