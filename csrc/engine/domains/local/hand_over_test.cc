// Who gets descriptors, and from whom they are taken: the proofs by themselves, then over sockets.
#include "csrc/engine/domains/local/hand_over.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "csrc/base/random_bytes.h"
#include "csrc/base/unique_fd.h"
#include "csrc/engine/domains/local/descriptor_client.h"
#include "csrc/engine/domains/local/local_address.h"
#include "csrc/engine/domains/local/local_domain.h"

namespace jax_fabric::local {
namespace {

std::shared_ptr<const FabricKey> KeyOf(const std::string& secret) {
  return FabricKey::Create(Secret::From(std::as_bytes(std::span(secret))).value()).value();
}

template <typename T>
Bytes PacketOf(const T& value) {
  const ByteView view = std::as_bytes(std::span(&value, 1));
  return Bytes(view.begin(), view.end());
}

DescriptorRequest SomeRequest() {
  DescriptorRequest request;
  request.incarnation = 42;
  EXPECT_TRUE(SetNonce(request).has_value());
  return request;
}

bool Mentions(const Error& error, const std::string& text) { return error.message.find(text) != std::string::npos; }

// A whole conversation without sockets.
Status Converse(const FabricKey* client, const FabricKey* server) {
  const DescriptorRequest request = SomeRequest();
  JF_ASSIGN_OR_RETURN(const DescriptorChallenge challenge, MakeChallenge(request, server));
  JF_ASSIGN_OR_RETURN(const DescriptorProof proof, AnswerChallenge(request, PacketOf(challenge), client));
  return CheckProof(request, challenge, PacketOf(proof), server);
}

TEST(HandOver, BothSidesHaveTheSecretOrBothHaveNone) {
  const auto ours = KeyOf("the secret of one fabric");
  const auto theirs = KeyOf("the secret of another one");
  EXPECT_TRUE(Converse(ours.get(), KeyOf("the secret of one fabric").get()).has_value());
  EXPECT_TRUE(Converse(nullptr, nullptr).has_value());
  for (const auto& [client, server] : {std::pair(ours, theirs), {ours, nullptr}, {nullptr, ours}}) {
    const Status status = Converse(client.get(), server.get());
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kPermissionDenied);
    EXPECT_TRUE(Mentions(status.error(), "there: " + DescribeSecret(server.get()))) << status.error().message;
    EXPECT_TRUE(Mentions(status.error(), "here: " + DescribeSecret(client.get()))) << status.error().message;
  }
}

TEST(HandOver, EveryBitOfAProofCounts) {
  const auto key = KeyOf("the secret of the fabric");
  const DescriptorRequest request = SomeRequest();
  const DescriptorChallenge challenge = MakeChallenge(request, key.get()).value();
  const Bytes proof = PacketOf(AnswerChallenge(request, PacketOf(challenge), key.get()).value());
  EXPECT_TRUE(CheckProof(request, challenge, proof, key.get()).has_value());
  for (size_t bit = 0; bit < 8 * proof.size(); ++bit) {
    if (bit / 32 == 1) continue;  // the fingerprint is there for messages only
    Bytes changed = proof;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(CheckProof(request, challenge, changed, key.get()).has_value()) << bit;
  }
  for (size_t bit = 0; bit < 8 * sizeof(challenge); ++bit) {
    if (bit / 32 == 1) continue;
    Bytes changed = PacketOf(challenge);
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(AnswerChallenge(request, changed, key.get()).has_value()) << bit;
  }
  // What was recorded elsewhere: of another request, of another challenge, of the other side.
  const DescriptorChallenge again = MakeChallenge(request, key.get()).value();
  EXPECT_FALSE(CheckProof(request, again, proof, key.get()).has_value());
  EXPECT_FALSE(CheckProof(SomeRequest(), challenge, proof, key.get()).has_value());
  EXPECT_FALSE(AnswerChallenge(SomeRequest(), PacketOf(challenge), key.get()).has_value());
  DescriptorProof reflected;
  reflected.proof = challenge.proof;
  EXPECT_FALSE(CheckProof(request, challenge, PacketOf(reflected), key.get()).has_value());
}

TEST(HandOver, OtherPacketsAreRefused) {
  const auto key = KeyOf("the secret of the fabric");
  const DescriptorRequest request = SomeRequest();
  const DescriptorChallenge challenge = MakeChallenge(request, key.get()).value();
  for (size_t length = 0; length < 400; ++length) {
    const Bytes packet(length, std::byte{0x44});
    EXPECT_FALSE(ParseRequest(packet).has_value());
    EXPECT_FALSE(AnswerChallenge(request, packet, key.get()).has_value());
    EXPECT_FALSE(CheckProof(request, challenge, packet, key.get()).has_value());
    EXPECT_FALSE(ParseReply(packet).has_value());
  }
  const DescriptorReply refusal = Refusal({ErrorCode::kNotFound, std::string(1000, 'x')});
  EXPECT_EQ(ParseReply(PacketOf(refusal)).error().code, ErrorCode::kNotFound);
  // A success in place of the challenge is none.
  EXPECT_EQ(AnswerChallenge(request, PacketOf(DescriptorReply()), key.get()).error().code, ErrorCode::kDataLoss);
  DescriptorReply unknown_code = refusal;
  unknown_code.code = 0xffffffff;
  EXPECT_EQ(ParseReply(PacketOf(unknown_code)).error().code, ErrorCode::kDataLoss);
}

// --- over sockets

class HandOverSockets : public testing::Test {
 protected:
  UniqueFd Connect() const {
    UniqueFd socket_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un name;
    const socklen_t length = MakeAbstractName(address_.socket_name, name);
    EXPECT_EQ(connect(socket_fd.get(), reinterpret_cast<sockaddr*>(&name), length), 0);
    return socket_fd;
  }
  DescriptorRequest Request() const {
    DescriptorRequest request = SomeRequest();
    request.incarnation = address_.incarnation;
    return request;
  }
  static void Send(const UniqueFd& socket_fd, ByteView packet) {
    EXPECT_EQ(send(socket_fd.get(), packet.data(), packet.size(), MSG_NOSIGNAL), static_cast<ssize_t>(packet.size()));
  }
  // The packet, empty at the end of the connection; and whether descriptors came with it.
  static std::pair<Bytes, bool> Receive(const UniqueFd& socket_fd) {
    Bytes packet(1024);
    iovec payload = {packet.data(), packet.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
    msghdr message = {};
    message.msg_iov = &payload;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    pollfd polled = {socket_fd.get(), POLLIN, 0};
    EXPECT_EQ(poll(&polled, 1, 20'000), 1);
    const ssize_t count = recvmsg(socket_fd.get(), &message, MSG_CMSG_CLOEXEC);
    packet.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
    return {packet, message.msg_controllen > 0 && count > 0};
  }
  DescriptorClient Client(std::shared_ptr<const FabricKey> key) const {
    return DescriptorClient(address_, Request(), std::move(key), Deadline::After(SteadyClock::Get(), 20'000'000));
  }

  const std::shared_ptr<const FabricKey> key_ = KeyOf("the secret of the fabric");
  const std::unique_ptr<Domain> domain_ = CreateLocalDomain({.key = key_}).value();
  const LocalAddress address_ = LocalAddress::Open(domain_->address()).value();
};

TEST_F(HandOverSockets, DescriptorsForWhoKnowsTheSecret) {
  for (int i = 0; i < 3; ++i) {
    const auto received = Client(key_).Wait();
    ASSERT_TRUE(received.has_value()) << received.error().message;
    EXPECT_EQ(received->descriptors.size(), 2u);
  }
  for (const auto& wrong : {KeyOf("another secret for a fabric"), std::shared_ptr<const FabricKey>()}) {
    const auto received = Client(wrong).Wait();
    ASSERT_FALSE(received.has_value());
    EXPECT_EQ(received.error().code, ErrorCode::kPermissionDenied);
    EXPECT_TRUE(Mentions(received.error(), fmt::format("process {}", getpid()))) << received.error().message;
    EXPECT_TRUE(Mentions(received.error(), DescribeSecret(key_.get()))) << received.error().message;
  }
}

// Clients that do not do what ours does, whatever they say.
TEST_F(HandOverSockets, NothingForWhoDoesNotProveIt) {
  const auto guess = KeyOf("a guess at the fabric's secret");
  const DescriptorRequest request = Request();
  UniqueFd socket_fd = Connect();
  Send(socket_fd, PacketOf(request));
  const auto [challenge_packet, early] = Receive(socket_fd);
  EXPECT_FALSE(early);
  ASSERT_EQ(challenge_packet.size(), sizeof(DescriptorChallenge));
  DescriptorProof forged =
      AnswerChallenge(request, PacketOf(MakeChallenge(request, guess.get()).value()), guess.get()).value();
  forged.secret_fingerprint = key_->fingerprint();
  Send(socket_fd, PacketOf(forged));
  const auto [refusal, late] = Receive(socket_fd);
  EXPECT_FALSE(late);
  EXPECT_EQ(ParseReply(refusal).error().code, ErrorCode::kPermissionDenied);
  EXPECT_TRUE(Receive(socket_fd).first.empty());  // closed

  for (const Bytes& first : {Bytes(1), Bytes(sizeof(DescriptorRequest)), Bytes(5000), PacketOf(DescriptorReply())}) {
    socket_fd = Connect();
    Send(socket_fd, first);
    EXPECT_TRUE(Receive(socket_fd).first.empty()) << first.size();
  }
  EXPECT_TRUE(Client(key_).Wait().has_value());
}

TEST_F(HandOverSockets, WhoSaysNothingIsDisconnectedAndDelaysNobody) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(Connect());
  Send(silent[0], PacketOf(Request()));
  EXPECT_EQ(Receive(silent[0]).first.size(), sizeof(DescriptorChallenge));
  EXPECT_TRUE(Client(key_).Wait().has_value());
  for (const UniqueFd& socket_fd : silent) EXPECT_TRUE(Receive(socket_fd).first.empty());
}

// Somebody listens where the peer was.
TEST_F(HandOverSockets, ImpostorsAreNotBelieved) {
  const auto guess = KeyOf("a guess at the fabric's secret");
  for (const bool with_challenge : {true, false}) {
    UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    LocalAddress impostor = address_;
    impostor.socket_name = fmt::format("jax_fabric-test-{:016x}", RandomId().value());
    sockaddr_un name;
    const socklen_t length = MakeAbstractName(impostor.socket_name, name);
    ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&name), length), 0);
    ASSERT_EQ(listen(listener.get(), 1), 0);
    DescriptorClient client(impostor, Request(), key_, Deadline::After(SteadyClock::Get(), 20'000'000));
    EXPECT_FALSE(client.Poll().has_value());
    const UniqueFd connection(accept(listener.get(), nullptr, nullptr));
    const Bytes request = Receive(connection).first;
    if (with_challenge) {
      DescriptorChallenge challenge = MakeChallenge(ParseRequest(request).value(), guess.get()).value();
      challenge.secret_fingerprint = key_->fingerprint();
      Send(connection, PacketOf(challenge));
    } else {
      Send(connection, PacketOf(DescriptorReply()));
    }
    const auto received = client.Wait();
    ASSERT_FALSE(received.has_value());
    EXPECT_EQ(received.error().code, with_challenge ? ErrorCode::kPermissionDenied : ErrorCode::kDataLoss);
    // It has got no proof that it could use elsewhere.
    pollfd polled = {connection.get(), POLLIN, 0};
    EXPECT_EQ(poll(&polled, 1, 0), 0);
  }
}

TEST_F(HandOverSockets, DomainsOfOneProcessNeedTheSameSecret) {
  const auto same = CreateLocalDomain({.key = KeyOf("the secret of the fabric")}).value();
  EXPECT_TRUE(same->AddPeer(domain_->address()).has_value());
  for (const auto& key : {KeyOf("another secret for a fabric"), std::shared_ptr<const FabricKey>()}) {
    const auto other = CreateLocalDomain({.key = key}).value();
    EXPECT_EQ(other->AddPeer(domain_->address()).error().code, ErrorCode::kPermissionDenied);
    EXPECT_EQ(domain_->AddPeer(other->address()).error().code, ErrorCode::kPermissionDenied);
  }
}

}  // namespace
}  // namespace jax_fabric::local
