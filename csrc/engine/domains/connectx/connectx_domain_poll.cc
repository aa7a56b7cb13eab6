// ConnectXDomain: what the completion queue says.
#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <utility>

#include "csrc/engine/domains/connectx/completion_words.h"
#include "csrc/engine/domains/connectx/connectx_domain_impl.h"

namespace jax_fabric::connectx {
namespace {

constexpr int kBatch = 32;
constexpr size_t kMostWaiting = 4096;  // for their polls; the queue's own entries wait behind them
constexpr uint32_t kPollsPerHousekeeping = 16;
constexpr uint32_t kReceivesAtOnce = 64;
constexpr uint32_t kMessagesAtLeast = 64;

}  // namespace

size_t ConnectXDomain::Poll(std::span<Completion> completions) {
  size_t count = TakeReports(completions);
  const bool slept = std::exchange(armed_, false);
  if (slept) queue_->TakeEvents();
  PollQueue();
  AdvanceLoopback();
  if (!broken_.empty()) SweepBroken();
  if (!closing_.empty()) SweepClosing();
  if (++polls_ % kPollsPerHousekeeping == 0 || slept) Housekeep();
  return count + TakeReports(completions.subspan(count));
}

size_t ConnectXDomain::TakeReports(std::span<Completion> out) {
  size_t count = 0;
  const auto take = [&](const Completion& completion) {
    out[count++] = completion;
    if (completion.kind == CompletionKind::kWrite || completion.kind == CompletionKind::kSend) {
      outstanding_ -= completion.count;
    }
  };
  while (count < out.size() && !good_.empty()) take(good_.Pop());
  // As many as have one cause: last_error() is theirs.
  for (bool first = true; count < out.size() && !reports_.empty(); first = false) {
    Report& report = reports_.front();
    if (!first && report.cause != last_error_) break;
    take(report.completion);
    last_error_ = std::move(report.cause);
    reports_.pop_front();
  }
  return count;
}

bool ConnectXDomain::PollQueue() {
  std::array<ibv_wc, kBatch> work;
  bool any = false;
  int count = kBatch;
  while (count == kBatch && good_.size() < kMostWaiting) {
    count = queue_->Poll(work);
    any |= count > 0;
    for (int i = 0; i < count; ++i) OnWork(work[static_cast<size_t>(i)]);
    if (posted_immediates_ < immediate_depth_) PostImmediateReceives();
  }
  return any;
}

bool ConnectXDomain::IsBusy() const {
  // What is sent again and again until it is answered, waits for its own time, or was not taken by the device.
  const auto connects = [this](PeerId id) { return peers_[id].handshake.has_value(); };
  return !good_.empty() || !reports_.empty() || !loopback_.empty() || !broken_.empty() || !closing_.empty() ||
         posted_immediates_ < immediate_depth_ || std::any_of(live_.begin(), live_.end(), connects);
}

// Heartbeats have time until the worker looks around by itself.
bool ConnectXDomain::ArmWait() {
  if (IsBusy()) return false;
  armed_ = true;
  // In this order: what comes before the queue is armed, the poll finds.
  return queue_->Arm() && !PollQueue();
}

void ConnectXDomain::OnWork(const ibv_wc& work) {
  const WorkId id = WorkId::Unpack(work.wr_id);
  const bool good = work.status == IBV_WC_SUCCESS;
  switch (id.kind) {
    case WorkId::Kind::kImmediate: {
      --posted_immediates_;
      if (!good) return;
      Completion completion;
      completion.kind = CompletionKind::kImmediate;
      completion.immediate = ntohl(work.imm_data);
      return Push(completion);
    }
    case WorkId::Kind::kLane:
      return OnLane(work, id);
    case WorkId::Kind::kMessage:
      --posted_messages_;
      return OnMessage(work, id.position);
    case WorkId::Kind::kDatagramReceive:
      if (good) OnDatagram(datagrams_->Received(id.position, work.byte_len));
      return datagrams_->Repost(id.position);
    case WorkId::Kind::kDatagramSend:
      return datagrams_->OnSent(id.position);
  }
}

void ConnectXDomain::OnMessage(const ibv_wc& work, uint32_t buffer) {
  const auto found = inbound_.find(work.qp_num);
  if (work.status != IBV_WC_SUCCESS || found == inbound_.end()) {
    receive_buffers_->Return(buffer);
    return PostMessageReceives();
  }
  const Connection& connection = *found->second;
  ++connection.remote->held;
  held_.push_back({buffer, connection.remote, connection.attempt, work.byte_len});
  DeliverHeld();
}

void ConnectXDomain::OnLane(const ibv_wc& work, const WorkId& id) {
  if (id.index >= lanes_.size() || lanes_[id.index] == nullptr) return;  // destroyed since
  Lane& lane = *lanes_[id.index];
  const uint32_t count = lane.CountTo(id.position);
  if (count == 0) return;
  if (work.status == IBV_WC_SUCCESS) return Retire(lane, count, ErrorCode::kOk, nullptr);
  if (lane.broken()) return Retire(lane, count, lane.code(), &lane.cause());
  const StatusMeaning meaning = MeaningOf(work.status);
  const std::string cause = Words(lane, work, meaning.words);
  const PeerId peer = lane.connection().peer;
  Retire(lane, count - 1, ErrorCode::kOk, nullptr);
  lane.Break(meaning.behind, fmt::format("behind a failed one: {}", cause));
  Retire(lane, 1, meaning.code, &cause);
  if (peer == Completion::kUnknownPeer || peers_[peer].broken_ns != 0) return;
  peers_[peer].broken_ns = 1;
  broken_.push_back(peer);
}

std::string ConnectXDomain::Words(const Lane& lane, const ibv_wc& work, std::string_view meaning) const {
  std::string port;
  if (work.status == IBV_WC_RETRY_EXC_ERR) port = "; " + device_->PortWords();
  return fmt::format("{} to peer {}: {} (status {}, vendor error {:#x}){}{}{}",
                     &lane == lane.connection().lanes[ConnectionEnd::kWrites].get() ? "write" : "message",
                     lane.connection().peer, device_->verbs().ibv_wc_status_str(work.status),
                     static_cast<int>(work.status), work.vendor_err, meaning.empty() ? "" : ": ", meaning, port);
}

void ConnectXDomain::Retire(Lane& lane, uint32_t count, ErrorCode code, const std::string* cause) {
  Completion completion;
  completion.code = code;
  completion.peer = lane.connection().peer;
  bool merging = false;
  for (; count > 0; --count) {
    const Posted posted = lane.Pop();
    if (posted.marker) {
      lane.OnMarker();
      continue;
    }
    if (posted.region != nullptr) memory_.Release(*posted.region);
    if (posted.kind == CompletionKind::kSend) send_buffers_->Return(posted.buffer);
    completion.kind = posted.kind;
    completion.context = posted.context;
    completion.length = posted.length;
    if (cause != nullptr) {
      PushError(completion, *cause);
    } else if (posted.chained && merging) {
      ++good_.back().count;
    } else {
      Push(completion);
      merging = true;
    }
  }
}

void ConnectXDomain::PostImmediateReceives() {
  while (posted_immediates_ < immediate_depth_) {
    std::array<ibv_recv_wr, kReceivesAtOnce> chain;
    const uint32_t count = std::min(kReceivesAtOnce, immediate_depth_ - posted_immediates_);
    for (uint32_t i = 0; i < count; ++i) {
      chain[i] = {};
      chain[i].wr_id = WorkId{WorkId::Kind::kImmediate, 0, 0}.Pack();
      chain[i].next = i + 1 < count ? &chain[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    const int error = ibv_post_srq_recv(write_receives_.get(), chain.data(), &bad);
    posted_immediates_ += error == 0 ? count : static_cast<uint32_t>(bad - chain.data());
    if (error != 0) return;  // at the next poll
  }
}

void ConnectXDomain::PostMessageReceives() {
  const auto wanted = kMessagesAtLeast + options_.message_credits * static_cast<uint32_t>(remotes_.size());
  while (posted_messages_ < std::min(message_depth_, wanted)) {
    const auto buffer = receive_buffers_->Take();
    if (!buffer.has_value()) return;
    ibv_sge element = receive_buffers_->Element(*buffer, limits_.max_message_bytes);
    ibv_recv_wr request = {};
    request.wr_id = WorkId{WorkId::Kind::kMessage, 0, *buffer}.Pack();
    request.sg_list = &element;
    request.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_srq_recv(message_receives_.get(), &request, &bad) != 0) {
      receive_buffers_->Return(*buffer);
      return;
    }
    ++posted_messages_;
  }
}

void ConnectXDomain::AdvanceLoopback() {
  const nic::LoopbackWrite* write = loopback_.Advance();
  if (write == nullptr) return;
  Completion completion;
  completion.peer = write->peer;
  if (write->immediate.has_value()) {
    completion.kind = CompletionKind::kImmediate;
    completion.immediate = *write->immediate;
    Push(completion);
  }
  completion.kind = CompletionKind::kWrite;
  completion.immediate = 0;
  completion.context = write->context;
  completion.length = write->length;
  Push(completion);
  loopback_.Drop();
}

}  // namespace jax_fabric::connectx
