#include "csrc/engine/domains/connectx/connectx_domain.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "csrc/base/clock.h"
#include "csrc/base/random_bytes.h"
#include "csrc/engine/domains/connectx/connectx_domain_impl.h"

namespace jax_fabric {
namespace connectx {
namespace {

constexpr uint64_t kMaxWriteBytes = uint64_t{1} << 30;
constexpr uint32_t kMaxMessageDepth = 4096;
constexpr int64_t kLeaveNs = 20'000'000;
constexpr uint32_t kMaxAckTimeoutExponent = 31;
constexpr uint32_t kMaxRetryCount = 7;

Status Check(const ConnectXDomainOptions& options) {
  if (options.max_outstanding == 0 || options.max_receives == 0 || options.message_credits == 0 ||
      options.immediate_depth == 0 || options.max_message_bytes == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "max_outstanding ({}), max_receives ({}), message_credits ({}), immediate_depth ({}) and "
                     "max_message_bytes ({}) have to be at least 1",
                     options.max_outstanding, options.max_receives, options.message_credits, options.immediate_depth,
                     options.max_message_bytes);
  }
  if (options.heartbeat_interval_us <= 0 || options.peer_timeout_us < 3 * options.heartbeat_interval_us) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "peer_timeout_us ({}) has to be at least 3 heartbeat_interval_us ({}), above 0",
                     options.peer_timeout_us, options.heartbeat_interval_us);
  }
  // 0 is "wait for ever" to devices: then a dead peer's writes never end.
  if (options.ack_timeout_exponent == 0 || options.ack_timeout_exponent > kMaxAckTimeoutExponent ||
      options.retry_count > kMaxRetryCount || options.service_level > 15 || options.traffic_class > 255) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "ack_timeout_exponent ({}) has to be from 1 to {}, retry_count ({}) at most {}, service_level ({}) "
        "at most 15, traffic_class ({}) at most 255",
        options.ack_timeout_exponent, kMaxAckTimeoutExponent, options.retry_count, kMaxRetryCount,
        options.service_level, options.traffic_class);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ConnectXDomain>> ConnectXDomain::Create(const ConnectXDomainOptions& options) {
  JF_RETURN_IF_ERROR(Check(options));
  JF_ASSIGN_OR_RETURN(const uint64_t incarnation, RandomId());
  JF_ASSIGN_OR_RETURN(auto device, VerbsDevice::Open(options));
  std::unique_ptr<ConnectXDomain> domain(new ConnectXDomain(options, std::move(device), incarnation));
  JF_RETURN_IF_ERROR(domain->Start());
  return domain;
}

ConnectXDomain::ConnectXDomain(const ConnectXDomainOptions& options, std::unique_ptr<VerbsDevice> device,
                               uint64_t incarnation)
    : options_(options),
      incarnation_(incarnation),
      device_(std::move(device)),
      write_receives_(nullptr, device_->verbs().ibv_destroy_srq),
      message_receives_(nullptr, device_->verbs().ibv_destroy_srq),
      registrar_(*device_,
                 options.max_region_bytes != 0 ? std::min(options.max_region_bytes, device_->limits().max_mr_size)
                                               : device_->limits().max_mr_size,
                 options.export_device_memory),
      memory_(registrar_, incarnation),
      loopback_(memory_),
      answerer_(incarnation, [this](const HandshakeDatagram& hello) { return Accept(hello); }),
      draws_(incarnation) {
  const ibv_device_attr& device_limits = device_->limits();
  const uint64_t largest = device_->port_limits().max_msg_sz;
  const auto work = static_cast<uint32_t>(device_limits.max_qp_wr);
  limits_.max_write_bytes = std::min<uint64_t>(kMaxWriteBytes, largest);
  limits_.max_message_bytes = std::min<uint64_t>(options.max_message_bytes, largest);
  limits_.max_region_bytes = options.max_region_bytes != 0
                                 ? std::min(options.max_region_bytes, device_limits.max_mr_size)
                                 : device_limits.max_mr_size;
  limits_.max_outstanding = std::min(options.max_outstanding, work > 2 ? work - 1 : 1);
  limits_.max_receives = options.max_receives;
  const auto shared = static_cast<uint32_t>(device_limits.max_srq_wr);
  immediate_depth_ = std::min(options.immediate_depth, shared);
  message_depth_ = std::min(kMaxMessageDepth, shared);
}

Status ConnectXDomain::Start() {
  // Whatever is posted finds a place: an overrun completion queue is of no use any more.
  const uint64_t entries = uint64_t{immediate_depth_} + message_depth_ + DatagramEndpoint::kReceives +
                           DatagramEndpoint::kSends + limits_.max_outstanding + kMarkers;
  if (entries > static_cast<uint64_t>(device_->limits().max_cqe)) {
    return MakeError(ErrorCode::kResourceExhausted,
                     "{}: a completion queue of {} entries is needed and it has at most {}: lower immediate_depth ({}) "
                     "or max_outstanding ({})",
                     name(), entries, device_->limits().max_cqe, options_.immediate_depth, options_.max_outstanding);
  }
  JF_ASSIGN_OR_RETURN(queue_, CompletionQueue::Create(*device_, static_cast<int>(entries)));
  JF_ASSIGN_OR_RETURN(write_receives_, MakeReceiveQueue(immediate_depth_, 0));
  JF_ASSIGN_OR_RETURN(message_receives_, MakeReceiveQueue(message_depth_, 1));
  send_buffers_ = std::make_unique<BufferPool>(*device_, limits_.max_message_bytes, limits_.max_outstanding);
  receive_buffers_ = std::make_unique<BufferPool>(*device_, limits_.max_message_bytes, message_depth_);
  // Of the upper half only privileged programs choose keys.
  JF_ASSIGN_OR_RETURN(
      datagrams_, DatagramEndpoint::Create(*device_, queue_->get(), static_cast<uint32_t>(incarnation_) & 0x7fffffff));
  PostImmediateReceives();
  PostMessageReceives();
  if (posted_immediates_ == 0 || posted_messages_ == 0) {
    return MakeError(ErrorCode::kUnavailable, "{} takes no receives", name());
  }
  address_ = ConnectXAddress{incarnation_,
                             device_->address(),
                             datagrams_->queue_pair(),
                             datagrams_->key(),
                             static_cast<uint32_t>(limits_.max_message_bytes),
                             options_.message_credits}
                 .Seal();
  return {};
}

Result<Owned<ibv_srq>> ConnectXDomain::MakeReceiveQueue(uint32_t depth, uint32_t elements) {
  ibv_srq_init_attr attributes = {};
  attributes.attr.max_wr = depth;
  attributes.attr.max_sge = std::max(elements, 1u);
  Owned<ibv_srq> made(device_->verbs().ibv_create_srq(device_->pd(), &attributes), device_->verbs().ibv_destroy_srq);
  if (made == nullptr) {
    return MakeError(ErrorCode::kResourceExhausted, "{}: no shared receive queue of {} entries: {}", name(), depth,
                     ErrnoWords(errno));
  }
  return made;
}

ConnectXDomain::~ConnectXDomain() {
  if (datagrams_ != nullptr) Leave();
}

void ConnectXDomain::Leave() {
  for (const auto& [incarnation, remote] : remotes_) {
    nic::WireMessage message;
    message.kind = nic::WireMessage::Kind::kLeaving;
    message.value = 1;
    Send(*remote, message);
  }
  const int64_t end_ns = SteadyClock::Get().NowNs() + kLeaveNs;
  while (!remotes_.empty() && !datagrams_->idle() && SteadyClock::Get().NowNs() < end_ns) PollQueue();
}

}  // namespace connectx

Result<std::unique_ptr<Domain>> CreateConnectXDomain(const ConnectXDomainOptions& options) {
  JF_ASSIGN_OR_RETURN(auto domain, connectx::ConnectXDomain::Create(options));
  return std::unique_ptr<Domain>(std::move(domain));
}

}  // namespace jax_fabric
