#include "csrc/engine/handshake.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "csrc/base/byte_reader.h"
#include "csrc/base/byte_writer.h"

namespace jax_fabric {
namespace {

constexpr uint32_t kMagic = 0x5348464a;  // "JFHS"
constexpr uint16_t kVersion = 1;

HandshakeDatagram Reply(HandshakeDatagram::Kind kind, const HandshakeDatagram& hello, uint64_t from, Bytes payload) {
  return {kind, from, hello.from, hello.attempt, std::move(payload)};
}

Bytes AsBytes(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + std::min(text.size(), HandshakeDatagram::kMaxPayloadBytes)};
}

}  // namespace

Bytes HandshakeDatagram::Serialize() const {
  ByteWriter writer;
  writer.U8(static_cast<uint8_t>(kind));
  writer.U64(from);
  writer.U64(to);
  writer.U64(attempt);
  writer.ByteString(payload);
  return SealFrame(kMagic, kVersion, writer.bytes());
}

Result<HandshakeDatagram> HandshakeDatagram::Parse(ByteView bytes) {
  JF_ASSIGN_OR_RETURN(const Frame frame, OpenFrame(kMagic, kVersion, bytes, "handshake"));
  ByteReader reader(frame.payload);
  HandshakeDatagram datagram;
  JF_ASSIGN_OR_RETURN(datagram.kind, reader.Enumerator(Kind::kRefusal, "kind"));
  JF_ASSIGN_OR_RETURN(datagram.from, reader.U64("sender"));
  JF_ASSIGN_OR_RETURN(datagram.to, reader.U64("receiver"));
  JF_ASSIGN_OR_RETURN(datagram.attempt, reader.U64("attempt"));
  JF_ASSIGN_OR_RETURN(const ByteView payload, reader.ByteString(kMaxPayloadBytes, "payload"));
  datagram.payload.assign(payload.begin(), payload.end());
  return datagram;
}

// --- caller

HandshakeCaller::HandshakeCaller(HandshakeDatagram hello, HandshakePolicy policy, int64_t now_ns)
    : hello_(std::move(hello)),
      policy_(policy),
      deadline_ns_(now_ns + policy.timeout_ns),
      next_ns_(now_ns),
      pause_ns_(policy.first_pause_ns) {}

std::optional<HandshakeDatagram> HandshakeCaller::Poll(int64_t now_ns, double draw) {
  if (state_ != PeerState::kConnecting || now_ns < next_ns_) return std::nullopt;
  if (now_ns >= deadline_ns_) {
    Fail(ErrorCode::kDeadlineExceeded, fmt::format("no answer to {} hellos within {} ms: is the peer there, and the "
                                                   "network between?",
                                                   hellos_, policy_.timeout_ns / 1'000'000));
    return std::nullopt;
  }
  ++hellos_;
  // Between half of the pause and all of it.
  const int64_t pause = pause_ns_ / 2 + static_cast<int64_t>(draw * static_cast<double>(pause_ns_ - pause_ns_ / 2));
  next_ns_ = std::min(now_ns + std::max<int64_t>(1, pause), deadline_ns_);
  pause_ns_ = std::min(2 * pause_ns_, policy_.longest_pause_ns);
  return hello_;
}

void HandshakeCaller::OnDatagram(const HandshakeDatagram& datagram) {
  if (state_ != PeerState::kConnecting || datagram.to != hello_.from || datagram.attempt != hello_.attempt) return;
  if (datagram.kind == HandshakeDatagram::Kind::kAnswer && datagram.from == hello_.to) {
    state_ = PeerState::kReady;
    answer_ = datagram.payload;
    next_ns_ = std::numeric_limits<int64_t>::max();
  } else if (datagram.kind == HandshakeDatagram::Kind::kRefusal) {
    const auto* text = reinterpret_cast<const char*>(datagram.payload.data());
    Fail(ErrorCode::kUnavailable, "refused by the peer: " + std::string(text, datagram.payload.size()));
  }
}

void HandshakeCaller::Fail(ErrorCode code, std::string cause) {
  if (state_ != PeerState::kConnecting) return;
  state_ = PeerState::kFailed;
  error_ = Error{code, std::move(cause), {}, {}};
  next_ns_ = std::numeric_limits<int64_t>::max();
}

// --- answerer

std::optional<HandshakeDatagram> HandshakeAnswerer::OnHello(const HandshakeDatagram& hello) {
  using Kind = HandshakeDatagram::Kind;
  if (hello.kind != Kind::kHello) return std::nullopt;
  if (hello.to != incarnation_) {
    return Reply(Kind::kRefusal, hello, incarnation_,
                 AsBytes(fmt::format("incarnation {:016x} is not here any more, this is {:016x}: get the new address",
                                     hello.to, incarnation_)));
  }
  const auto known = callers_.find(hello.from);
  if (known != callers_.end() && hello.attempt <= known->second.attempt) {
    // Late or doubled, unless our answer was lost.
    return hello.attempt == known->second.attempt ? known->second.answer : std::nullopt;
  }
  Result<Bytes> payload = accept_(hello);
  if (!payload.has_value()) return Reply(Kind::kRefusal, hello, incarnation_, AsBytes(payload.error().message));
  ++accepted_;
  Known& caller = callers_[hello.from];
  caller = {hello.attempt, Reply(Kind::kAnswer, hello, incarnation_, *std::move(payload))};
  return caller.answer;
}

void HandshakeAnswerer::Forget(uint64_t caller) {
  if (const auto known = callers_.find(caller); known != callers_.end()) known->second.answer.reset();
}

}  // namespace jax_fabric
