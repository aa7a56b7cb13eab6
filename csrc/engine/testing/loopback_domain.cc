#include "csrc/engine/testing/loopback_domain.h"

#include <algorithm>
#include <cstring>

namespace jax_fabric::testing {
namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

}  // namespace

LoopbackDomain::LoopbackDomain(LoopbackNetwork& network, Options options)
    : network_(network), options_(std::move(options)), index_([&] {
        const Lock lock(network.mutex_);
        network.domains_.push_back(nullptr);
        return static_cast<uint32_t>(network.domains_.size() - 1);
      }()) {
  const Lock lock(network_.mutex_);
  network_.domains_[index_] = this;
  address_.resize(sizeof index_);
  std::memcpy(address_.data(), &index_, sizeof index_);
  next_key_ = uint64_t{index_} << 32 | 1;
}

LoopbackDomain::~LoopbackDomain() {
  const Lock lock(network_.mutex_);
  network_.domains_[index_] = nullptr;
}

Result<MemoryRegion> LoopbackDomain::RegisterMemory(void* address, uint64_t length, MemoryKind kind, Access access) {
  const Lock lock(network_.mutex_);
  const uint64_t key = next_key_++;
  const uint64_t first = reinterpret_cast<uint64_t>(address);
  const MemoryRegion region{first, length, first, key, key, kind};
  regions_[key] = Region{region, access};
  return region;
}

Status LoopbackDomain::DeregisterMemory(const MemoryRegion& region) {
  const Lock lock(network_.mutex_);
  for (const Pending& pending : pending_) {
    if (pending.request.local_key == region.local_key) {
      return MakeError(ErrorCode::kFailedPrecondition, "region is in use");
    }
  }
  if (regions_.erase(region.local_key) == 0) return MakeError(ErrorCode::kNotFound, "no such region");
  return {};
}

Result<PeerId> LoopbackDomain::AddPeer(ByteView address) {
  const Lock lock(network_.mutex_);
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (std::equal(address.begin(), address.end(), peers_[i].address.begin(), peers_[i].address.end()) &&
        peers_[i].state != PeerState::kRemoved) {
      return static_cast<PeerId>(i);
    }
  }
  uint32_t index = 0;
  if (address.size() != sizeof index) return MakeError(ErrorCode::kInvalidArgument, "not a loopback address");
  std::memcpy(&index, address.data(), sizeof index);
  peers_.push_back(Peer{Bytes(address.begin(), address.end()), index, PeerState::kConnecting, "peer not ready"});
  return static_cast<PeerId>(peers_.size() - 1);
}

PeerState LoopbackDomain::peer_state(PeerId peer) const {
  const Lock lock(network_.mutex_);
  return peers_[peer].state;
}

void LoopbackDomain::RemovePeer(PeerId peer) {
  const Lock lock(network_.mutex_);
  peers_[peer].state = PeerState::kRemoved;
  FailPending(peer, "peer removed");
}

void LoopbackDomain::KillPeer(PeerId peer, const std::string& cause) {
  const Lock lock(network_.mutex_);
  peers_[peer].state = PeerState::kFailed;
  peers_[peer].cause = cause;
  Completion fault;
  fault.kind = CompletionKind::kPeerFault;
  fault.code = ErrorCode::kUnavailable;
  fault.peer = peer;
  inbox_.emplace_back(fault, cause);
  FailPending(peer, "flushed");
}

void LoopbackDomain::FailPending(PeerId peer, const std::string& error) {
  std::erase_if(pending_, [&](const Pending& pending) {
    if (pending.request.peer != peer) return false;
    Complete(pending, ErrorCode::kUnavailable, error);
    return true;
  });
}

PostResult LoopbackDomain::PostWrite(const WriteRequest& request) { return Take(request, false); }

PostResult LoopbackDomain::PostSend(const SendRequest& request) {
  WriteRequest as_write;
  as_write.peer = request.peer;
  as_write.context = request.context;
  as_write.source = request.source;
  as_write.local_key = request.local_key;
  as_write.length = request.length;
  return Take(as_write, true);
}

PostResult LoopbackDomain::Take(const WriteRequest& request, bool is_send) {
  const Lock lock(network_.mutex_);
  const auto reject = [&](const char* why) {
    last_error_ = why;
    return PostResult::kRejected;
  };
  if (request.peer >= peers_.size()) return reject("no such peer");
  if (peers_[request.peer].state != PeerState::kReady) return reject(peers_[request.peer].cause.c_str());
  if (pending_.size() >= options_.limits.max_outstanding || faults_.again.count(request.peer) > 0) {
    return PostResult::kAgain;
  }
  if (std::bernoulli_distribution(faults_.again_probability)(network_.random_)) return PostResult::kAgain;
  if (request.length > (is_send ? options_.limits.max_message_bytes : options_.limits.max_write_bytes)) {
    return reject("too long");
  }
  if (request.length > 0) {
    const auto source = regions_.find(request.local_key);
    const uint64_t first = reinterpret_cast<uint64_t>(request.source);
    if (source == regions_.end() || first < source->second.memory.address ||
        first + request.length > source->second.memory.address + source->second.memory.length) {
      return reject("source is not registered");
    }
  }
  if (faults_.reject_post >= 0 && faults_.reject_post-- == 0) return reject("rejected on request");
  const bool fails = faults_.fail_post >= 0 && faults_.fail_post-- == 0;
  pending_.push_back(Pending{request, is_send, fails, faults_.silent.count(request.peer) > 0});
  if (!is_send) writes_.push_back(request);
  return PostResult::kPosted;
}

PostResult LoopbackDomain::PostReceive(const ReceiveRequest& request) {
  const Lock lock(network_.mutex_);
  if (receives_.size() >= options_.limits.max_receives) return PostResult::kAgain;
  receives_.push_back(request);
  return PostResult::kPosted;
}

void LoopbackDomain::Complete(const Pending& pending, ErrorCode code, const std::string& error) {
  Completion completion;
  completion.kind = pending.is_send ? CompletionKind::kSend : CompletionKind::kWrite;
  completion.code = code;
  completion.peer = pending.request.peer;
  completion.context = pending.request.context;
  inbox_.emplace_back(completion, error);
}

const LoopbackDomain::Region* LoopbackDomain::FindRemote(uint32_t domain, uint64_t key, uint64_t address,
                                                         uint64_t length) const {
  const LoopbackDomain* target = domain < network_.domains_.size() ? network_.domains_[domain] : nullptr;
  if (target == nullptr) return nullptr;
  const auto found = target->regions_.find(key);
  if (found == target->regions_.end() || found->second.access != Access::kRemoteWrite) return nullptr;
  const MemoryRegion& memory = found->second.memory;
  const bool inside = address >= memory.remote_address && address - memory.remote_address <= memory.length &&
                      length <= memory.length - (address - memory.remote_address);
  return inside ? &found->second : nullptr;
}

bool LoopbackDomain::Deliver(const Pending& pending) {
  const WriteRequest& request = pending.request;
  const uint32_t domain = peers_[request.peer].domain;
  LoopbackDomain* target = domain < network_.domains_.size() ? network_.domains_[domain] : nullptr;
  if (target == nullptr) {
    Complete(pending, ErrorCode::kUnavailable, "nobody there");
    return true;
  }
  if (pending.fails) {
    Complete(pending, ErrorCode::kDataLoss, "failed on request");
    return true;
  }
  Completion arrival;
  if (pending.is_send) {
    if (target->receives_.empty()) return false;
    const ReceiveRequest buffer = target->receives_.front();
    target->receives_.pop_front();
    std::memcpy(buffer.target, request.source, std::min(buffer.length, request.length));
    arrival.kind = CompletionKind::kReceive;
    arrival.context = buffer.context;
    arrival.length = request.length;
    for (PeerId id = 0; id < target->peers_.size(); ++id) {
      if (target->peers_[id].domain == index_) arrival.peer = id;
    }
    target->inbox_.emplace_back(arrival, "");
  } else {
    if (FindRemote(domain, request.remote_key, request.remote_address, request.length) == nullptr) {
      Complete(pending, ErrorCode::kPermissionDenied, "remote key or range is wrong");
      return true;
    }
    if (options_.copy && request.length > 0) {
      std::memcpy(reinterpret_cast<void*>(request.remote_address), request.source, request.length);
    }
    if (request.immediate.has_value()) {
      arrival.kind = CompletionKind::kImmediate;
      arrival.immediate = *request.immediate;
      target->inbox_.emplace_back(arrival, "");
    }
  }
  Complete(pending, ErrorCode::kOk, "");
  return true;
}

size_t LoopbackDomain::Poll(std::span<Completion> completions) {
  const Lock lock(network_.mutex_);
  for (PeerId id = 0; id < peers_.size(); ++id) {
    Peer& peer = peers_[id];
    if (peer.state != PeerState::kConnecting || faults_.never_ready.count(id) > 0) continue;
    const bool there = peer.domain < network_.domains_.size() && network_.domains_[peer.domain] != nullptr;
    if (!there) last_error_ = "nobody at this address";
    peer.state = there ? PeerState::kReady : PeerState::kFailed;
  }
  std::shuffle(pending_.begin(), pending_.end(), network_.random_);
  std::erase_if(pending_, [&](const Pending& pending) {
    if (pending.silent || !std::bernoulli_distribution(options_.delivery_probability)(network_.random_)) return false;
    return Deliver(pending);
  });
  std::shuffle(inbox_.begin(), inbox_.end(), network_.random_);
  size_t count = 0;
  while (count < completions.size() && !inbox_.empty()) {
    // An error and its cause go together: one a Poll, so that last_error speaks of it.
    const bool is_error = inbox_.back().first.code != ErrorCode::kOk;
    if (is_error && count > 0) break;
    completions[count++] = inbox_.back().first;
    if (is_error) last_error_ = inbox_.back().second;
    inbox_.pop_back();
    if (is_error) break;
  }
  return count;
}

void* LoopbackDomain::MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) {
  const Lock lock(network_.mutex_);
  if (peer >= peers_.size() || FindRemote(peers_[peer].domain, remote_key, remote_address, length) == nullptr) {
    return nullptr;
  }
  return reinterpret_cast<void*>(remote_address);
}

}  // namespace jax_fabric::testing
