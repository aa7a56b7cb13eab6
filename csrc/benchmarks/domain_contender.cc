#include "csrc/benchmarks/domain_contender.h"

#include <algorithm>
#include <cstring>

namespace jax_fabric::benchmarks {

Result<Introduction> DomainContender::Introduce() {
  JF_ASSIGN_OR_RETURN(region_,
                      domain_->RegisterMemory(memory_.data(), memory_.size(), MemoryKind::kHost, Access::kRemoteWrite));
  Introduction own;
  own.address.assign(domain_->address().begin(), domain_->address().end());
  own.memory.resize(sizeof(region_));
  std::memcpy(own.memory.data(), &region_, sizeof(region_));
  return own;
}

Status DomainContender::Connect(const Introduction& target) {
  std::memcpy(&target_, target.memory.data(), sizeof(target_));
  JF_ASSIGN_OR_RETURN(peer_, domain_->AddPeer(target.address));
  ProgressGuard guard;
  while (domain_->peer_state(peer_) != PeerState::kReady) {
    JF_RETURN_IF_ERROR(PollWrites());
    JF_RETURN_IF_ERROR(guard.Idle("connecting"));
  }
  return {};
}

Status DomainContender::Write(const Batch& batch) {
  const size_t count = batch.offsets.size();
  ProgressGuard guard;
  size_t posted = 0;
  for (size_t done = 0; done < count;) {
    const size_t end = std::min<size_t>(count, done + batch.window);
    if (posted < end) {
      JF_ASSIGN_OR_RETURN(const uint32_t more, Post(batch, posted, end));
      posted += more;
    }
    JF_ASSIGN_OR_RETURN(const size_t completed, PollWrites());
    if (completed == 0) JF_RETURN_IF_ERROR(guard.Idle("domain"));
    if (completed > 0) guard.Moved();
    done += completed;
  }
  return {};
}

Result<uint32_t> DomainContender::Post(const Batch& batch, size_t first, size_t end) {
  PagesRequest request;
  request.peer = peer_;
  request.source = memory_.data();
  request.local_key = region_.local_key;
  request.length = batch.write_bytes;
  request.remote_address = target_.remote_address;
  request.remote_key = target_.remote_key;
  request.source_offsets = request.target_offsets = batch.offsets.data() + first;
  request.count = static_cast<uint32_t>(end - first);
  request.transfer_bytes = batch.offsets.size() * batch.write_bytes;
  if (batch.immediates) request.immediate = 1;
  uint32_t posted = 0;
  switch (domain_->PostPages(request, posted)) {
    case PostResult::kPosted:
      return posted;
    case PostResult::kAgain:
      return 0u;
    case PostResult::kRejected:
      break;
  }
  return MakeError(ErrorCode::kInternal, "{}: {}", domain_->name(), domain_->last_error());
}

Result<size_t> DomainContender::PollWrites() {
  const size_t count = domain_->Poll(completions_);
  size_t writes = 0;
  for (size_t i = 0; i < count; ++i) {
    const Completion& each = completions_[i];
    if (each.kind == CompletionKind::kPeerFault || each.code != ErrorCode::kOk) {
      return MakeError(ErrorCode::kUnavailable, "{}: {}", domain_->name(), domain_->last_error());
    }
    if (each.kind == CompletionKind::kWrite) writes += each.count;
  }
  return writes;
}

void DomainContender::Poll() { domain_->Poll(completions_); }

}  // namespace jax_fabric::benchmarks
