// Peer addresses and descriptors: what comes from the wire.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "csrc/base/byte_reader.h"
#include "csrc/base/byte_writer.h"
#include "csrc/engine/descriptor.h"
#include "csrc/engine/peer_address.h"

namespace jax_fabric {
namespace {

PeerAddress SomeAddress() {
  PeerAddress address;
  address.name = "decoder-1";
  address.kind = DomainKind::kEfa;
  address.incarnation = 0x123456789abcdef0;
  address.max_write_bytes = uint64_t{1} << 40;
  address.max_message_bytes = 8192;
  address.nics = {Bytes(32, std::byte{1}), Bytes(32, std::byte{2})};
  return address;
}

TEST(PeerAddress, RoundTrip) {
  const PeerAddress address = SomeAddress();
  const PeerAddress parsed = PeerAddress::Parse(address.Serialize()).value();
  EXPECT_EQ(parsed.name, address.name);
  EXPECT_EQ(parsed.kind, address.kind);
  EXPECT_EQ(parsed.incarnation, address.incarnation);
  EXPECT_EQ(parsed.max_write_bytes, address.max_write_bytes);
  EXPECT_EQ(parsed.max_message_bytes, address.max_message_bytes);
  EXPECT_EQ(parsed.nics, address.nics);
  EXPECT_EQ(parsed.secret_fingerprint, 0u);
}

std::shared_ptr<const FabricKey> KeyOf(const std::string& secret) {
  return FabricKey::Create(Secret::From(std::as_bytes(std::span(secret))).value()).value();
}

// What AddPeer does.
Status Authenticate(const Bytes& bytes, const FabricKey* key) {
  JF_ASSIGN_OR_RETURN(const PeerAddress address, PeerAddress::Parse(bytes));
  return address.Authenticate(bytes, key);
}

TEST(PeerAddress, ProvesTheSecret) {
  const auto ours = KeyOf("the secret of one fabric");
  const auto theirs = KeyOf("the secret of another one");
  const Bytes bytes = SomeAddress().Serialize(ours.get());
  EXPECT_TRUE(Authenticate(bytes, ours.get()).has_value());
  EXPECT_TRUE(Authenticate(bytes, KeyOf("the secret of one fabric").get()).has_value());
  EXPECT_TRUE(Authenticate(SomeAddress().Serialize(), nullptr).has_value());

  // Both sides' secrets can be compared by what the error says, and it says how to make them equal.
  const Error other = Authenticate(bytes, theirs.get()).error();
  EXPECT_EQ(other.code, ErrorCode::kPermissionDenied);
  for (const std::string& part : {"there: " + DescribeSecret(ours.get()), "here: " + DescribeSecret(theirs.get()),
                                  std::string("JAX_FABRIC_SECRET_FILE")}) {
    EXPECT_NE(other.message.find(part), std::string::npos) << other.message;
  }
  EXPECT_NE(Authenticate(bytes, nullptr).error().message.find("here: none"), std::string::npos);
  EXPECT_NE(Authenticate(SomeAddress().Serialize(), ours.get()).error().message.find("there: none"), std::string::npos);
}

// Whoever changes an address makes its checksum anew.
TEST(PeerAddress, ForgeriesAreRefused) {
  const auto key = KeyOf("the secret of one fabric");
  const Bytes good = SomeAddress().Serialize(key.get());
  const Frame frame = OpenFrame(0x4441464a, kProtocolVersion, good, "address").value();
  for (size_t bit = 0; bit < frame.payload.size() * 8; ++bit) {
    Bytes payload(frame.payload.begin(), frame.payload.end());
    payload[bit / 8] ^= std::byte{1} << (bit % 8);
    const Bytes forged = SealFrame(0x4441464a, kProtocolVersion, payload);
    EXPECT_FALSE(Authenticate(forged, key.get()).has_value()) << bit;
  }
  // What a newer version appends is covered, too.
  Bytes longer(frame.payload.begin(), frame.payload.end());
  longer.push_back(std::byte{0});
  const Bytes appended = SealFrame(0x4441464a, kProtocolVersion, longer);
  ASSERT_TRUE(PeerAddress::Parse(appended).has_value());
  EXPECT_FALSE(Authenticate(appended, key.get()).has_value());
}

TEST(PeerAddress, DamageIsRefused) {
  const Bytes good = SomeAddress().Serialize();
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(PeerAddress::Parse(ByteView(good.data(), length)).has_value()) << length;
  }
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(PeerAddress::Parse(bad).has_value()) << bit;
  }
}

TEST(PeerAddress, ImpossibleValuesAreRefused) {
  PeerAddress address = SomeAddress();
  address.nics.assign(5, Bytes(8));
  EXPECT_EQ(PeerAddress::Parse(address.Serialize()).error().code, ErrorCode::kInvalidArgument);
  address.nics.clear();
  EXPECT_FALSE(PeerAddress::Parse(address.Serialize()).has_value());
  address = SomeAddress();
  address.incarnation = 0;
  EXPECT_FALSE(PeerAddress::Parse(address.Serialize()).has_value());
  address = SomeAddress();
  address.nics[0].resize(5000);
  EXPECT_FALSE(PeerAddress::Parse(address.Serialize()).has_value());
}

TEST(Descriptor, RoundTripAndDamage) {
  RemoteMemory memory;
  memory.length = (uint64_t{1} << 32) + 3;
  memory.incarnation = 7;
  memory.nics = {{0x7f0000000000, 42}, {0, ~uint64_t{0}}};
  const Bytes good = SerializeDescriptor(memory);
  const RemoteMemory parsed = ParseDescriptor(good).value();
  EXPECT_EQ(parsed.length, memory.length);
  EXPECT_EQ(parsed.incarnation, memory.incarnation);
  ASSERT_EQ(parsed.nics.size(), 2u);
  EXPECT_EQ(parsed.nics[0].remote_address, memory.nics[0].remote_address);
  EXPECT_EQ(parsed.nics[1].remote_key, memory.nics[1].remote_key);
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(ParseDescriptor(ByteView(good.data(), length)).has_value());
  }
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(ParseDescriptor(bad).has_value()) << bit;
  }
  EXPECT_FALSE(ParseDescriptor(SomeAddress().Serialize()).has_value());
}

TEST(Descriptor, Pieces) {
  const auto with = [](uint64_t length, RemoteMemory::Pieces pieces) {
    return SerializeDescriptor({.length = length,
                                .nics = {{1000, 1}, {2000, 2}},
                                .incarnation = 5,
                                .pieces = std::make_shared<const RemoteMemory::Pieces>(std::move(pieces))});
  };
  const std::vector<RemoteMemory::Nic> nics{{900, 1}, {1900, 2}, {1300, 3}, {2300, 4}};
  const Bytes good = with(500, {.stride = 400, .offset = 100, .nics = nics});
  const RemoteMemory parsed = ParseDescriptor(good).value();
  EXPECT_EQ(SerializeDescriptor(parsed), good);
  EXPECT_EQ(parsed.At(299, 1).remote_address, 2299u);
  EXPECT_EQ(parsed.At(299, 1).remote_key, 2u);
  EXPECT_EQ(parsed.At(300, 1).remote_address, 2300u);
  EXPECT_EQ(parsed.At(300, 1).remote_key, 4u);
  EXPECT_EQ(parsed.At(500, 0).remote_address, 1500u);
  EXPECT_EQ(parsed.At(~uint64_t{0} - 100, 0).remote_key, 3u);  // refused before; but never outside of the pieces
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(ParseDescriptor(ByteView(good.data(), length)).has_value());
  }
  for (const Bytes& bad :
       {with(500, {.stride = 0, .offset = 0, .nics = nics}), with(500, {.stride = 400, .offset = 400, .nics = nics}),
        with(0, {.stride = 400, .offset = 100, .nics = nics}), with(300, {.stride = 400, .offset = 100, .nics = nics}),
        with(~uint64_t{0}, {.stride = 400, .offset = 100, .nics = nics}),
        with(500, {.stride = 400, .offset = 100, .nics = {{1, 1}, {2, 2}, {3, 3}}}),
        with(500, {.stride = 400, .offset = 100, .nics = {{1, 1}, {2, 2}}}),
        with(9000, {.stride = 1, .offset = 0, .nics = std::vector<RemoteMemory::Nic>(2 * 4097)})}) {
    const auto refused = ParseDescriptor(bad);
    ASSERT_FALSE(refused.has_value());
    EXPECT_NE(refused.error().message.find("that cannot be"), std::string::npos) << refused.error().message;
  }
}

}  // namespace
}  // namespace jax_fabric
