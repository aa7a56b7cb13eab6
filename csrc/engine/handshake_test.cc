// Handshakes over a network that loses, doubles and reorders datagrams, by seed.
#include "csrc/engine/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace jax_fabric {
namespace {

constexpr HandshakePolicy kPolicy{.first_pause_ns = 100, .longest_pause_ns = 3'200, .timeout_ns = 1'000'000};

HandshakeDatagram Hello(uint64_t from, uint64_t to, uint64_t attempt, Bytes payload = {}) {
  return {HandshakeDatagram::Kind::kHello, from, to, attempt, std::move(payload)};
}

Result<Bytes> AcceptAll(const HandshakeDatagram&) { return Bytes{std::byte{7}}; }

// Ends 1, 2, ... that all call each other.
class Storm {
 public:
  Storm(uint64_t seed, size_t ends, double loss) : random_(seed), ends_(ends), loss_(loss) {
    for (uint64_t end = 1; end <= ends; ++end) {
      answerers_.push_back(
          std::make_unique<HandshakeAnswerer>(end, [this, end](const HandshakeDatagram& hello) -> Result<Bytes> {
            ++accepted_[{hello.from, end}];
            return Bytes{static_cast<std::byte>(end * 3 + hello.from)};
          }));
    }
    for (uint64_t from = 1; from <= ends; ++from) {
      for (uint64_t to = 1; to <= ends; ++to) callers_.emplace_back(Hello(from, to, 1), kPolicy, 0);
    }
  }

  void Run() {
    for (now_ = 0; now_ < kPolicy.timeout_ns; now_ += 10) {
      bool connecting = false;
      for (size_t i = 0; i < callers_.size(); ++i) {
        if (auto hello = callers_[i].Poll(now_, Draw())) Send(*hello);
        connecting |= callers_[i].state() == PeerState::kConnecting;
      }
      while (!network_.empty() && network_.begin()->first <= now_) {
        const Bytes bytes = std::move(network_.begin()->second);
        network_.erase(network_.begin());
        Deliver(HandshakeDatagram::Parse(bytes).value());
      }
      if (!connecting && network_.empty()) return;
    }
  }

  void ExpectAllReady() const {
    for (size_t i = 0; i < callers_.size(); ++i) {
      const uint64_t from = i / ends_ + 1, to = i % ends_ + 1;
      ASSERT_EQ(callers_[i].state(), PeerState::kReady) << from << " to " << to;
      ASSERT_EQ(callers_[i].answer()[0], static_cast<std::byte>(to * 3 + from));
      ASSERT_EQ(accepted_.at({from, to}), 1) << "made twice: " << from << " to " << to;
    }
  }
  uint64_t hellos() const {
    uint64_t hellos = 0;
    for (const HandshakeCaller& caller : callers_) hellos += caller.hellos();
    return hellos;
  }
  int64_t now() const { return now_; }

 private:
  double Draw() { return std::uniform_real_distribution<>(0, 1)(random_); }
  void Send(const HandshakeDatagram& datagram) {
    const int copies = Draw() < loss_ ? 0 : Draw() < loss_ ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      network_.emplace(now_ + static_cast<int64_t>(1'000 * Draw() * Draw()), datagram.Serialize());
    }
  }
  void Deliver(const HandshakeDatagram& datagram) {
    if (datagram.kind == HandshakeDatagram::Kind::kHello) {
      if (const auto reply = answerers_[datagram.to - 1]->OnHello(datagram)) Send(*reply);
    } else {
      callers_[(datagram.to - 1) * ends_ + datagram.from - 1].OnDatagram(datagram);
    }
  }

  std::mt19937_64 random_;
  const size_t ends_;
  const double loss_;
  int64_t now_ = 0;
  std::vector<std::unique_ptr<HandshakeAnswerer>> answerers_;
  std::vector<HandshakeCaller> callers_;
  std::map<std::pair<uint64_t, uint64_t>, int> accepted_;
  std::multimap<int64_t, Bytes> network_;
};

TEST(Handshake, EverybodyReachesEverybody) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Storm storm(seed, 2 + seed % 5, 0.1 * static_cast<double>(seed % 7));
    storm.Run();
    ASSERT_NO_FATAL_FAILURE(storm.ExpectAllReady());
  }
}

TEST(Handshake, AStormOfSixtyFour) {
  Storm storm(1, 64, 0.3);
  storm.Run();
  ASSERT_NO_FATAL_FAILURE(storm.ExpectAllReady());
  // Half of the round trips fail, and the pauses are shorter than a round trip at first: still no flood.
  EXPECT_LT(storm.hellos(), 64u * 64 * 6);
  EXPECT_LT(storm.now(), 50'000);
}

TEST(Handshake, PausesGrowAndDiffer) {
  HandshakeCaller caller(Hello(1, 2, 1), kPolicy, 1'000);
  std::vector<int64_t> pauses;
  for (int64_t now = 1'000; caller.state() == PeerState::kConnecting;) {
    const bool said = caller.Poll(now, 0.5).has_value();
    ASSERT_EQ(said, caller.state() == PeerState::kConnecting);
    EXPECT_FALSE(caller.Poll(now, 0.5).has_value());
    if (caller.state() != PeerState::kConnecting) break;
    pauses.push_back(caller.next_ns() - now);
    now = caller.next_ns();
  }
  EXPECT_EQ((std::vector<int64_t>{pauses.begin(), pauses.begin() + 7}),
            (std::vector<int64_t>{75, 150, 300, 600, 1'200, 2'400, 2'400}));
  EXPECT_EQ(caller.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(caller.error().message.find("no answer to 4"), std::string::npos) << caller.error().message;
}

TEST(Handshake, LateAndDoubledHellosMakeNothing) {
  int made = 0;
  HandshakeAnswerer answerer(
      2, [&](const HandshakeDatagram&) -> Result<Bytes> { return Bytes{static_cast<std::byte>(++made)}; });
  const auto first = answerer.OnHello(Hello(1, 2, 1));
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(answerer.OnHello(Hello(1, 2, 1))->payload, first->payload);
  const auto second = answerer.OnHello(Hello(1, 2, 2));  // the caller has begun anew
  EXPECT_NE(second->payload, first->payload);
  EXPECT_FALSE(answerer.OnHello(Hello(1, 2, 1)).has_value());
  EXPECT_EQ(answerer.OnHello(Hello(1, 2, 2))->payload, second->payload);
  EXPECT_EQ(made, 2);
  // An answer to the first attempt is none to the second one, nor is one that another end gives.
  HandshakeCaller caller(Hello(1, 2, 2), kPolicy, 0);
  caller.OnDatagram(*first);
  HandshakeDatagram wrong = *second;
  wrong.from = 3;
  caller.OnDatagram(wrong);
  EXPECT_EQ(caller.state(), PeerState::kConnecting);
  caller.OnDatagram(*second);
  caller.OnDatagram(*second);
  EXPECT_EQ(caller.state(), PeerState::kReady);
  // What is over is not made again by what was under way.
  answerer.Forget(1);
  EXPECT_FALSE(answerer.OnHello(Hello(1, 2, 2)).has_value());
  EXPECT_TRUE(answerer.OnHello(Hello(1, 2, 3)).has_value());
  EXPECT_EQ(made, 3);
}

TEST(Handshake, RefusalsSayWhy) {
  HandshakeAnswerer restarted(5, AcceptAll);
  HandshakeCaller caller(Hello(1, 4, 1), kPolicy, 0);
  caller.OnDatagram(*restarted.OnHello(*caller.Poll(0, 0)));
  EXPECT_EQ(caller.state(), PeerState::kFailed);
  EXPECT_NE(caller.error().message.find("0000000000000004 is not here any more"), std::string::npos)
      << caller.error().message;
  // Another answer may be given to the next hello.
  bool full = true;
  HandshakeAnswerer answerer(2, [&](const HandshakeDatagram&) -> Result<Bytes> {
    if (full) return MakeError(ErrorCode::kResourceExhausted, "no queue pair is left");
    return Bytes{};
  });
  HandshakeCaller unlucky(Hello(1, 2, 1), kPolicy, 0);
  unlucky.OnDatagram(*answerer.OnHello(*unlucky.Poll(0, 0)));
  EXPECT_NE(unlucky.error().message.find("no queue pair is left"), std::string::npos) << unlucky.error().message;
  full = false;
  EXPECT_EQ(answerer.OnHello(Hello(1, 2, 1))->kind, HandshakeDatagram::Kind::kAnswer);
}

TEST(Handshake, DamagedDatagramsAreRefused) {
  HandshakeDatagram datagram = Hello(1, 2, 3, Bytes(100));
  const Bytes good = datagram.Serialize();
  ASSERT_TRUE(HandshakeDatagram::Parse(good).has_value());
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(HandshakeDatagram::Parse(ByteView(good).first(length)).has_value()) << length;
  }
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes flipped = good;
    flipped[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    EXPECT_FALSE(HandshakeDatagram::Parse(flipped).has_value()) << bit;
  }
  datagram.payload.resize(HandshakeDatagram::kMaxPayloadBytes + 1);
  EXPECT_FALSE(HandshakeDatagram::Parse(datagram.Serialize()).has_value());
  datagram.payload.clear();
  datagram.kind = static_cast<HandshakeDatagram::Kind>(9);
  EXPECT_FALSE(HandshakeDatagram::Parse(datagram.Serialize()).has_value());
}

}  // namespace
}  // namespace jax_fabric
