#include "csrc/engine/domains/efa/efa_domain.h"

#include <algorithm>
#include <utility>

#include "csrc/base/clock.h"
#include "csrc/base/random_bytes.h"
#include "csrc/engine/domains/efa/efa_domain_impl.h"

namespace jax_fabric {
namespace efa {
namespace {

constexpr uint64_t kMaxWriteBytes = uint64_t{1} << 30;
constexpr uint32_t kDepthForControl = 64;  // of the provider's: heartbeats go when all writes are posted
constexpr int64_t kLeaveNs = 200'000'000;

Status Check(const EfaDomainOptions& options) {
  if (options.max_outstanding == 0 || options.max_receives == 0 || options.message_credits == 0 ||
      options.completion_entries == 0 || options.max_message_bytes == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "max_outstanding ({}), max_receives ({}), message_credits ({}), completion_entries ({}) and "
                     "max_message_bytes ({}) have to be at least 1",
                     options.max_outstanding, options.max_receives, options.message_credits, options.completion_entries,
                     options.max_message_bytes);
  }
  if (options.heartbeat_interval_us <= 0 || options.peer_timeout_us < 3 * options.heartbeat_interval_us) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "peer_timeout_us ({}) has to be at least 3 heartbeat_interval_us ({}), above 0",
                     options.peer_timeout_us, options.heartbeat_interval_us);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<EfaDomain>> EfaDomain::Create(const EfaDomainOptions& options) {
  JF_RETURN_IF_ERROR(Check(options));
  JF_ASSIGN_OR_RETURN(const uint64_t incarnation, RandomId());
  JF_ASSIGN_OR_RETURN(auto endpoint, FabricEndpoint::Open(options));
  std::unique_ptr<EfaDomain> domain(new EfaDomain(options, std::move(endpoint), incarnation));
  JF_RETURN_IF_ERROR(domain->Start());
  return domain;
}

EfaDomain::EfaDomain(const EfaDomainOptions& options, std::unique_ptr<FabricEndpoint> endpoint, uint64_t incarnation)
    : options_(options),
      endpoint_(std::move(endpoint)),
      splits_(options.provider.find("ofi_rxm") != std::string::npos),
      incarnation_(incarnation),
      name_(fmt::format("efa:{}", endpoint_->info().domain_attr->name)),
      registrar_(*endpoint_, incarnation, options.device_memory),
      memory_(registrar_, incarnation),
      loopback_(memory_),
      // Twice: what a lost peer leaves with the provider must not keep the others from posting.
      operations_(2 * size_t{options.max_outstanding}),
      answerer_(incarnation, [this](const HandshakeDatagram& hello) -> Result<Bytes> {
        Remote& remote = *remotes_.at(hello.from);
        remote.inbound = true;
        remote.inbound_attempt = hello.attempt;
        remote.taken = remote.taken_reported = 0;
        return Bytes{};
      }) {
  const fi_info& info = endpoint_->info();
  limits_.max_write_bytes = std::min<uint64_t>(kMaxWriteBytes, info.ep_attr->max_msg_size);
  limits_.max_message_bytes =
      std::min<uint64_t>(options.max_message_bytes, info.ep_attr->max_msg_size - nic::WireMessage::kOverhead);
  limits_.max_region_bytes = ~uint64_t{0};
  const auto depth = static_cast<uint32_t>(info.tx_attr->size);
  limits_.max_outstanding = std::min(options.max_outstanding,
                                     depth > 2 * kDepthForControl ? depth - kDepthForControl : std::max(depth / 2, 1u));
  limits_.max_receives = options.max_receives;
  address_ = EfaAddress{incarnation, options.provider, endpoint_->name(), options.message_credits}.Seal();
  draws_ = incarnation;
}

Status EfaDomain::Start() {
  // What comes has to fit, whatever size of messages the other side has been told.
  const size_t bytes = nic::WireMessage::kOverhead + std::max<uint64_t>(limits_.max_message_bytes, 2048);
  send_buffers_ = std::make_unique<MessageBuffers>(memory_, bytes);
  receive_buffers_ = std::make_unique<MessageBuffers>(memory_, bytes);
  JF_ASSIGN_OR_RETURN(scratch_region_,
                      memory_.Register(scratch_.data(), scratch_.size(), MemoryKind::kHost, Access::kLocalOnly));
  PostReceives();
  if (posted_receives_ > 0) return {};
  return MakeError(ErrorCode::kUnavailable, "{} takes no receive", name_);
}

EfaDomain::~EfaDomain() {
  if (send_buffers_) Leave();
  for (const auto& [incarnation, remote] : remotes_) endpoint_->Remove(remote->address, true);
  endpoint_->Shut();  // before the memory that the provider might still use
}

void EfaDomain::Leave() {
  const int64_t end_ns = SteadyClock::Get().NowNs() + kLeaveNs;
  removals_.clear();
  for (const auto& [incarnation, remote] : remotes_) {
    if (remote->gone) continue;
    nic::WireMessage message;
    message.kind = nic::WireMessage::Kind::kGoodbye;
    message.attempt = remote->inbound_attempt;
    if (remote->inbound) {
      removals_.push_back({Completion::kUnknownPeer, remote.get(), remote->inbound_attempt, 0});
    } else {
      message.kind = nic::WireMessage::Kind::kLeaving;
    }
    Send(*remote, message);
  }
  std::array<Completion, 64> ignored;
  const auto busy = [&] {
    return !removals_.empty() || operations_.in_use() > 0 ||
           std::any_of(remotes_.begin(), remotes_.end(), [](const auto& each) {
             return !each.second->gone && each.second->controls + each.second->outbox.size() > 0;
           });
  };
  while (broken_.empty() && busy() && SteadyClock::Get().NowNs() < end_ns) {
    ReadQueue(ignored);
    PostImmediates();
    if (waiting_outboxes_ > 0) FlushOutboxes();
  }
}

}  // namespace efa

Result<std::unique_ptr<Domain>> CreateEfaDomain(const EfaDomainOptions& options) {
  JF_ASSIGN_OR_RETURN(auto domain, efa::EfaDomain::Create(options));
  return std::unique_ptr<Domain>(std::move(domain));
}

}  // namespace jax_fabric
