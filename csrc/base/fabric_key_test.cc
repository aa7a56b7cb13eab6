#include "csrc/base/fabric_key.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace jax_fabric {
namespace {

using Purpose = FabricKey::Purpose;
using Bytes = std::vector<std::byte>;

Bytes ToBytes(const std::string& text) {
  const auto view = std::as_bytes(std::span(text));
  return Bytes(view.begin(), view.end());
}

std::shared_ptr<const FabricKey> KeyOf(const std::string& secret) {
  return FabricKey::Create(Secret::From(ToBytes(secret)).value()).value();
}

TEST(Secret, LengthIsBounded) {
  for (const size_t length : {size_t{0}, size_t{1}, Secret::kMinBytes - 1, Secret::kMaxBytes + 1}) {
    const auto secret = Secret::From(Bytes(length));
    ASSERT_FALSE(secret.has_value()) << length;
    EXPECT_NE(secret.error().message.find("16 to 1024"), std::string::npos) << secret.error().message;
  }
  EXPECT_EQ(Secret::From(Bytes(Secret::kMinBytes))->bytes().size(), Secret::kMinBytes);
  EXPECT_EQ(Secret::From(Bytes(Secret::kMaxBytes))->bytes().size(), Secret::kMaxBytes);
}

TEST(Secret, GeneratedOnesDiffer) {
  const Secret one = Secret::Generate().value();
  const Secret other = Secret::Generate().value();
  EXPECT_EQ(one.bytes().size(), 32u);
  EXPECT_NE(Bytes(one.bytes().begin(), one.bytes().end()), Bytes(other.bytes().begin(), other.bytes().end()));
}

class SecretFile : public testing::Test {
 protected:
  // Writes the file and reads the secret.
  Result<Secret> Read(const std::string& content, mode_t mode) {
    std::ofstream(path_, std::ios::binary) << content;
    EXPECT_EQ(chmod(path_.c_str(), mode), 0);
    return Secret::FromFile(path_);
  }
  ~SecretFile() override { std::filesystem::remove(path_); }

  const std::string path_ = testing::TempDir() + "/fabric_key_test_secret";
};

TEST_F(SecretFile, WithoutTheNewlineAtItsEnd) {
  const std::string text = "0123456789abcdef";
  for (const std::string end : {"", "\n", "\r\n"}) {
    const auto secret = Read(text + end, 0600);
    ASSERT_TRUE(secret.has_value()) << secret.error().message;
    EXPECT_EQ(Bytes(secret->bytes().begin(), secret->bytes().end()), ToBytes(text));
  }
  EXPECT_EQ(Read(std::string(Secret::kMaxBytes, 'x') + "\r\n", 0400)->bytes().size(), Secret::kMaxBytes);
  EXPECT_TRUE(Read(text, 0440).has_value());
}

TEST_F(SecretFile, RefusesWhatOthersCanReadOrWrite) {
  for (const mode_t mode : {0644, 0604, 0601, 0620, 0602, 0666}) {
    const auto secret = Read("0123456789abcdef", mode);
    ASSERT_FALSE(secret.has_value()) << mode;
    EXPECT_EQ(secret.error().code, ErrorCode::kPermissionDenied);
    EXPECT_NE(secret.error().message.find(path_), std::string::npos);
    EXPECT_EQ(secret.error().message.find("0123456789abcdef"), std::string::npos);
    std::filesystem::remove(path_);
  }
}

TEST_F(SecretFile, ErrorsNameTheFileAndNotItsContent) {
  for (const std::string& content : {std::string(), std::string("short-one"), std::string(2000, 'z')}) {
    const auto secret = Read(content, 0600);
    ASSERT_FALSE(secret.has_value());
    EXPECT_NE(secret.error().message.find(path_), std::string::npos);
    EXPECT_EQ(secret.error().message.find("short-one"), std::string::npos);
    EXPECT_EQ(secret.error().message.find("zzz"), std::string::npos);
  }
  EXPECT_FALSE(Secret::FromFile(path_ + ".missing").has_value());
  EXPECT_FALSE(Secret::FromFile(testing::TempDir()).has_value());
  EXPECT_FALSE(Secret::FromFile("/dev/zero").has_value());
}

TEST(FabricKey, TagsDependOnSecretPurposeAndData) {
  const auto key = KeyOf("the secret of one fabric");
  const auto same = KeyOf("the secret of one fabric");
  const auto other = KeyOf("the secret of another one");
  const Bytes data = ToBytes("some data");
  std::set<Bytes> tags;
  for (const auto purpose :
       {Purpose::kPeerAddress, Purpose::kMessage, Purpose::kHandOver, Purpose::kIntroduction, Purpose::kHandshake}) {
    for (const auto& signer : {key, other}) {
      Bytes tag(32);
      signer->Sign(purpose, data, tag);
      tags.insert(tag);
      EXPECT_EQ(same->Verify(purpose, data, tag), signer == key);
    }
  }
  EXPECT_EQ(tags.size(), 10u);
  EXPECT_TRUE(SameSecret(key.get(), same.get()));
  EXPECT_FALSE(SameSecret(key.get(), other.get()));
  EXPECT_FALSE(SameSecret(key.get(), nullptr));
  EXPECT_TRUE(SameSecret(nullptr, nullptr));
  EXPECT_EQ(key->fingerprint(), same->fingerprint());
  EXPECT_NE(key->fingerprint(), other->fingerprint());
}

TEST(FabricKey, EveryBitCounts) {
  const auto key = KeyOf("0123456789abcdef");
  for (const size_t tag_bytes : {FabricKey::kMinTagBytes, FabricKey::kMaxTagBytes}) {
    Bytes data = ToBytes("a message of some length");
    Bytes tag(tag_bytes);
    key->Sign(Purpose::kMessage, data, tag);
    EXPECT_TRUE(key->Verify(Purpose::kMessage, data, tag));
    for (Bytes* changed : {&data, &tag}) {
      for (size_t bit = 0; bit < changed->size() * 8; ++bit) {
        (*changed)[bit / 8] ^= std::byte{1} << (bit % 8);
        EXPECT_FALSE(key->Verify(Purpose::kMessage, data, tag)) << bit;
        (*changed)[bit / 8] ^= std::byte{1} << (bit % 8);
      }
    }
    EXPECT_FALSE(key->Verify(Purpose::kMessage, std::span(data).first(data.size() - 1), tag));
  }
  EXPECT_FALSE(key->Verify(Purpose::kMessage, {}, Bytes(8)));
  EXPECT_FALSE(key->Verify(Purpose::kMessage, {}, Bytes(65)));
}

// Processes of different builds have to agree. The values are those of Python's hashlib.blake2b (with key, salt and
// person as crypto_kdf_derive_from_key documents them).
TEST(FabricKey, IsTheSameInEveryBuild) {
  Bytes tag(16);
  KeyOf("0123456789abcdef")->Sign(Purpose::kPeerAddress, ToBytes("x"), tag);
  std::string hex;
  for (const std::byte byte : tag) hex += fmt::format("{:02x}", static_cast<unsigned>(byte));
  EXPECT_EQ(hex, "69eb57f1a47d3564643d438b54959f8a");
  EXPECT_EQ(DescribeSecret(KeyOf("0123456789abcdef").get()), "fingerprint c33ac82a");
  EXPECT_EQ(DescribeSecret(nullptr), "none");
}

}  // namespace
}  // namespace jax_fabric
