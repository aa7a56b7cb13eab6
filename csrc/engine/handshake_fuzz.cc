// Datagrams of a handshake: as they are parsed, and as both ends take them in any order, damaged, doubled or made up.
#include <map>
#include <optional>
#include <vector>

#include "csrc/engine/handshake.h"
#include "csrc/fuzz/fuzz_input.h"

using jax_fabric::Bytes;
using jax_fabric::ByteView;
using jax_fabric::HandshakeAnswerer;
using jax_fabric::HandshakeCaller;
using jax_fabric::HandshakeDatagram;
using jax_fabric::HandshakePolicy;
using jax_fabric::PeerState;
using jax_fabric::Result;
using jax_fabric::fuzz::FuzzInput;
using jax_fabric::fuzz::Require;
using Kind = HandshakeDatagram::Kind;

namespace {

void FuzzDatagram(FuzzInput input) {
  static const Bytes example = HandshakeDatagram{.payload = Bytes(2)}.Serialize();
  const Bytes bytes = jax_fabric::fuzz::FrameOf(input, example);
  const auto parsed = HandshakeDatagram::Parse(bytes);
  if (!parsed.has_value()) return;
  Require(parsed->payload.size() <= HandshakeDatagram::kMaxPayloadBytes, "payloads are bounded");
  const auto reparsed = HandshakeDatagram::Parse(parsed->Serialize());
  Require(reparsed.has_value() && reparsed->Serialize() == parsed->Serialize(), "what is written is read");
}

// One end that answers, and one that calls it. Everything that is ever said may be changed and said again.
class Conversation {
 public:
  explicit Conversation(FuzzInput input) : input_(input) {}

  void Run() {
    HandshakeDatagram own = Hello();
    HandshakeCaller caller(own, kPolicy, 0);
    for (int64_t now = 0; !input_.done() && said_.size() < 256; now += input_.Byte()) {
      if (const auto hello = caller.Poll(now, 0.5)) said_.push_back(*hello);
      const HandshakeDatagram datagram = Draw();
      if (const auto reply = answerer_.OnHello(datagram)) {
        Require(reply->to == datagram.from && reply->attempt == datagram.attempt, "a reply is to who called");
        Require(reply->payload.size() <= HandshakeDatagram::kMaxPayloadBytes, "a reply fits into a datagram");
        said_.push_back(*reply);
      }
      const PeerState before = caller.state();
      caller.OnDatagram(datagram);
      if (caller.state() == before) continue;
      Require(before == PeerState::kConnecting, "the first answer counts");
      Require(datagram.to == own.from && datagram.attempt == own.attempt, "answers are to the caller's attempt");
      Require(caller.state() == PeerState::kFailed || datagram.from == own.to, "only the peer says yes");
    }
  }

 private:
  static constexpr HandshakePolicy kPolicy{.first_pause_ns = 10, .longest_pause_ns = 100, .timeout_ns = 1'000};
  static constexpr uint64_t kAnswerer = 2;

  static HandshakeDatagram Hello() {
    return {.kind = Kind::kHello, .from = 1, .to = kAnswerer, .attempt = 3, .payload = {}};
  }

  Result<Bytes> Accept(const HandshakeDatagram& hello) {
    Require(hello.kind == Kind::kHello && hello.to == kAnswerer, "connections are made for hellos to this end");
    if (hello.payload.size() % 4 == 3) {
      return jax_fabric::MakeError(jax_fabric::ErrorCode::kResourceExhausted, "no room for {:01000x}", hello.from);
    }
    uint64_t& last = made_[hello.from];
    Require(hello.attempt > last || last == 0, "an attempt is made once, and none after a later one");
    last = hello.attempt;
    return Bytes(hello.attempt % 8);
  }

  HandshakeDatagram Draw() {
    const uint8_t choice = input_.Byte();
    HandshakeDatagram datagram = said_.empty() || choice % 4 == 0 ? Hello() : said_[choice / 4 % said_.size()];
    const uint8_t change = input_.Byte();
    if (change & 1) datagram.kind = static_cast<Kind>(1 + input_.Byte() % 3);
    if (change & 2) datagram.from = input_.Byte() % 4;
    if (change & 4) datagram.to = input_.Byte() % 4;
    if (change & 8) datagram.attempt = input_.Byte();
    if (change & 16) datagram.payload = input_.Bytes(input_.Byte());
    if (change & 32) answerer_.Forget(datagram.from);
    return datagram;
  }

  FuzzInput input_;
  std::vector<HandshakeDatagram> said_;
  std::map<uint64_t, uint64_t> made_;
  HandshakeAnswerer answerer_{kAnswerer, [this](const HandshakeDatagram& hello) { return Accept(hello); }};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  if (input.Byte() % 2 == 0) {
    FuzzDatagram(input);
  } else {
    Conversation(input).Run();
  }
  return 0;
}
