#include "csrc/engine/domains/simulated/simulated_domain.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/base/byte_reader.h"
#include "csrc/base/byte_writer.h"

namespace jax_fabric::simulated {
namespace {

constexpr uint32_t kMagic = 0x4153464a;  // "JFSA"
constexpr uint16_t kVersion = 1;
constexpr std::string_view kWhat = "address of a simulated domain";

using Lock = std::lock_guard<std::recursive_mutex>;

bool Inside(const MemoryRegion& region, uint64_t begin, uint64_t address, uint64_t length) {
  return address >= begin && address - begin <= region.length && length <= region.length - (address - begin);
}

}  // namespace

SimulatedDomain::SimulatedDomain(SimulatedNetwork& network, SimulatedDomainOptions options)
    : network_(network), options_(std::move(options)) {
  const Lock lock(network_.mutex_);
  index_ = network_.Join(this);
  // From the seed, so that a run can be repeated.
  incarnation_ = network_.random_();
  key_salt_ = network_.random_() << 20;
  ByteWriter writer;
  writer.U32(index_);
  writer.U64(incarnation_);
  address_ = SealFrame(kMagic, kVersion, writer.bytes());
  // Whoever knows the address may connect: there is nothing to get ready.
  answerer_.emplace(incarnation_, [](const HandshakeDatagram&) { return Bytes(); });
}

SimulatedDomain::~SimulatedDomain() { Leave(); }

void SimulatedDomain::Leave() {
  const Lock lock(network_.mutex_);
  if (std::exchange(left_, true)) return;
  network_.Leave(index_);
}

// --- memory

Result<MemoryRegion> SimulatedDomain::RegisterMemory(void* address, uint64_t length, MemoryKind kind, Access access) {
  const Lock lock(network_.mutex_);
  if (length > options_.limits.max_region_bytes) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: a registration of {} bytes: at most {} at once", options_.name,
                     length, options_.limits.max_region_bytes);
  }
  const uint64_t first = reinterpret_cast<uint64_t>(address);
  const uint64_t key = key_salt_ + next_key_++;
  const MemoryRegion region{first, length, first, key, key, kind};
  regions_[key] = Region{region, access};
  return region;
}

Status SimulatedDomain::DeregisterMemory(const MemoryRegion& region) {
  const Lock lock(network_.mutex_);
  if (network_.UsesKey(index_, region.local_key)) {
    return MakeError(ErrorCode::kFailedPrecondition, "{}: the region is in use", options_.name);
  }
  if (regions_.erase(region.local_key) == 0) {
    return MakeError(ErrorCode::kNotFound, "{}: no such region", options_.name);
  }
  return {};
}

const char* SimulatedDomain::CheckSource(const void* source, uint64_t length, uint64_t local_key) const {
  if (length == 0) return nullptr;
  const auto found = regions_.find(local_key);
  if (found == regions_.end()) return "the source is not registered";
  const MemoryRegion& memory = found->second.memory;
  if (!Inside(memory, memory.address, reinterpret_cast<uint64_t>(source), length)) {
    return "the source is outside of its registration";
  }
  return nullptr;
}

const char* SimulatedDomain::CheckTarget(uint64_t address, uint64_t length, uint64_t remote_key) const {
  const auto found = regions_.find(remote_key);
  if (found == regions_.end()) return "the remote key is unknown there";
  if (found->second.access != Access::kRemoteWrite) return "the remote memory may not be written to";
  const MemoryRegion& memory = found->second.memory;
  if (!Inside(memory, memory.remote_address, address, length)) return "the write ends outside of the remote memory";
  return nullptr;
}

void* SimulatedDomain::MapRemote(PeerId peer, uint64_t remote_address, uint64_t remote_key, uint64_t length) {
  const Lock lock(network_.mutex_);
  if (!options_.mappable || peer >= peers_.size()) return nullptr;
  const uint32_t index = peers_[peer].domain;
  if (options_.node_size > 0 && index / options_.node_size != index_ / options_.node_size) return nullptr;
  const SimulatedDomain* target = network_.Find(index);
  if (target == nullptr || target->CheckTarget(remote_address, length, remote_key) != nullptr) return nullptr;
  return reinterpret_cast<void*>(remote_address);
}

// --- peers

Result<PeerId> SimulatedDomain::AddPeer(ByteView address) {
  JF_ASSIGN_OR_RETURN(const Frame frame, OpenFrame(kMagic, kVersion, address, kWhat));
  ByteReader reader(frame.payload);
  Peer peer;
  JF_ASSIGN_OR_RETURN(peer.domain, reader.U32("number"));
  JF_ASSIGN_OR_RETURN(peer.incarnation, reader.U64("incarnation"));
  JF_RETURN_IF_ERROR(reader.End(kWhat));
  peer.cause = "the peer is not ready yet";

  const Lock lock(network_.mutex_);
  for (PeerId id = 0; id < peers_.size(); ++id) {
    const Peer& known = peers_[id];
    if (known.domain == peer.domain && known.incarnation == peer.incarnation && known.state != PeerState::kRemoved) {
      return id;
    }
  }
  peers_.push_back(peer);
  const auto id = static_cast<PeerId>(peers_.size() - 1);
  network_.StartHandshake(index_, id);
  return id;
}

PeerState SimulatedDomain::peer_state(PeerId peer) const {
  const Lock lock(network_.mutex_);
  return peers_[peer].state;
}

void SimulatedDomain::RemovePeer(PeerId peer) {
  const Lock lock(network_.mutex_);
  peers_[peer].state = PeerState::kRemoved;
  peers_[peer].cause = "the peer was removed";
  network_.Disconnect(peers_[peer].domain, index_);
  answerer_->Forget(peers_[peer].incarnation);
  network_.FailFlights(index_, peer, ErrorCode::kUnavailable, peers_[peer].cause);
}

void SimulatedDomain::KillPeer(PeerId peer, const std::string& cause) {
  const Lock lock(network_.mutex_);
  LosePeer(peer, ErrorCode::kUnavailable, cause);
}

void SimulatedDomain::HoldPosts(int64_t until_ns) {
  const Lock lock(network_.mutex_);
  posting_free_ns_ = std::max(posting_free_ns_, until_ns);
}

void SimulatedDomain::LosePeer(PeerId peer, ErrorCode code, const std::string& cause) {
  Peer& lost = peers_[peer];
  if (lost.state == PeerState::kFailed || lost.state == PeerState::kRemoved) return;
  lost.state = PeerState::kFailed;
  lost.cause = cause;
  Completion fault;
  fault.kind = CompletionKind::kPeerFault;
  fault.code = code;
  fault.peer = peer;
  Report(fault, cause);
  network_.FailFlights(index_, peer, code, "flushed: " + cause);
}

PeerId SimulatedDomain::PeerOf(uint32_t domain) const {
  const SimulatedDomain* other = network_.Find(domain);
  if (other == nullptr) return Completion::kUnknownPeer;
  for (PeerId id = 0; id < peers_.size(); ++id) {
    const Peer& peer = peers_[id];
    if (peer.domain == domain && peer.incarnation == other->incarnation_ && peer.state != PeerState::kRemoved) {
      return id;
    }
  }
  return Completion::kUnknownPeer;
}

// --- requests

PostResult SimulatedDomain::PostWrite(const WriteRequest& request) { return Take(request, false); }

PostResult SimulatedDomain::PostSend(const SendRequest& request) {
  WriteRequest as_write;
  as_write.peer = request.peer;
  as_write.context = request.context;
  as_write.source = request.source;
  as_write.local_key = request.local_key;
  as_write.length = request.length;
  return Take(as_write, true);
}

PostResult SimulatedDomain::Reject(std::string why) {
  last_error_ = std::move(why);
  return PostResult::kRejected;
}

bool SimulatedDomain::SaysAgain(PeerId peer) {
  if (outstanding_ >= options_.limits.max_outstanding || options_.faults.again.contains(peer)) return true;
  if (again_left_ == 0 && network_.Chance(options_.faults.again_probability)) {
    again_left_ = options_.faults.again_burst;
  }
  if (again_left_ == 0) return false;
  --again_left_;
  return true;
}

PostResult SimulatedDomain::Take(const WriteRequest& request, bool is_send) {
  const Lock lock(network_.mutex_);
  if (request.peer >= peers_.size()) return Reject(fmt::format("{}: no peer {}", options_.name, request.peer));
  const Peer& peer = peers_[request.peer];
  if (peer.state != PeerState::kReady) return Reject(peer.cause);
  const uint64_t most = is_send ? options_.limits.max_message_bytes : options_.limits.max_write_bytes;
  if (request.length > most) {
    return Reject(fmt::format("{}: {} bytes in one request: at most {}", options_.name, request.length, most));
  }
  if (const char* wrong = CheckSource(request.source, request.length, request.local_key)) return Reject(wrong);
  if (SaysAgain(request.peer)) return PostResult::kAgain;
  SimulatedFaults& faults = options_.faults;
  if (faults.reject_post >= 0 && faults.reject_post-- == 0) return Reject("rejected on request");

  Flight flight;
  flight.source = index_;
  flight.target = peer.domain;
  flight.request = request;
  flight.is_send = is_send;
  flight.refused = peer.refused;
  flight.silent = faults.silent.contains(request.peer);
  if (faults.fail_post >= 0 && faults.fail_post-- == 0) {
    flight.failure = static_cast<Flight::Failure>(1 + network_.UpTo(2));
    flight.failure_code = faults.fail_code;
  }
  ++outstanding_;
  if (!is_send && options_.record_writes) writes_.push_back(request);
  network_.Launch(std::move(flight));
  return PostResult::kPosted;
}

PostResult SimulatedDomain::PostReceive(const ReceiveRequest& request) {
  const Lock lock(network_.mutex_);
  if (const char* wrong = CheckSource(request.target, request.length, request.local_key)) {
    return Reject(fmt::format("receive: {}", wrong));
  }
  if (receives_.size() >= options_.limits.max_receives) return PostResult::kAgain;
  receives_.push_back(request);
  DeliverMessages();
  return PostResult::kPosted;
}

void SimulatedDomain::DeliverMessages() {
  while (!receives_.empty() && !messages_.empty()) {
    const ReceiveRequest buffer = receives_.front();
    const Message message = std::move(messages_.front());
    receives_.pop_front();
    messages_.pop_front();
    Completion arrival;
    arrival.kind = CompletionKind::kReceive;
    arrival.context = buffer.context;
    arrival.peer = message.peer;
    arrival.length = message.bytes.size();
    if (arrival.length > buffer.length) {
      arrival.code = ErrorCode::kOutOfRange;
      Report(arrival, fmt::format("a message of {} bytes for a buffer of {}", arrival.length, buffer.length));
      continue;
    }
    if (!message.bytes.empty()) std::memcpy(buffer.target, message.bytes.data(), message.bytes.size());
    Report(arrival);
  }
}

void SimulatedDomain::Report(const Completion& completion, std::string cause) {
  completions_.emplace_back(completion, std::move(cause));
}

size_t SimulatedDomain::Poll(std::span<Completion> completions) {
  const Lock lock(network_.mutex_);
  network_.RunDue();
  size_t count = 0;
  while (count < completions.size() && !completions_.empty()) {
    auto& [completion, cause] = completions_.front();
    // An error and its cause go together: one a Poll, so that last_error speaks of it.
    const bool is_error = completion.code != ErrorCode::kOk;
    if (is_error && count > 0) break;
    if (is_error) last_error_ = cause;
    completions[count++] = completion;
    completions_.pop_front();
    if (is_error) break;
  }
  return count;
}

}  // namespace jax_fabric::simulated
