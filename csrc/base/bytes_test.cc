#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "csrc/base/byte_reader.h"
#include "csrc/base/byte_writer.h"
#include "csrc/base/random_bytes.h"
#include "csrc/base/status.h"

namespace jax_fabric {
namespace {

constexpr uint32_t kMagic = 0x4a464142;

std::vector<std::byte> SampleFrame(uint16_t version = 3) {
  ByteWriter writer;
  writer.U64(0x0123456789abcdef);
  writer.String("peer");
  return SealFrame(kMagic, version, writer.bytes());
}

TEST(Bytes, IntegersAreLittleEndianAndComeBack) {
  ByteWriter writer;
  writer.U8(0xff);
  writer.U16(0x1234);
  writer.U32(0xfffffffe);
  writer.U64(0x8000000000000001);
  EXPECT_EQ(writer.bytes()[1], std::byte{0x34});
  ByteReader reader(writer.bytes());
  EXPECT_EQ(reader.U8("a").value(), 0xff);
  EXPECT_EQ(reader.U16("b").value(), 0x1234);
  EXPECT_EQ(reader.U32("c").value(), 0xfffffffe);
  EXPECT_EQ(reader.U64("d").value(), 0x8000000000000001);
  EXPECT_TRUE(reader.End("sample").has_value());
}

TEST(Bytes, ReadPastTheEndNamesTheField) {
  const std::vector<std::byte> bytes(3);
  ByteReader reader(bytes);
  const auto result = reader.U32("count");
  ASSERT_FALSE(result.has_value());
  EXPECT_NE(result.error().message.find("'count'"), std::string::npos) << result.error().message;
  EXPECT_EQ(reader.remaining(), 3u);
  EXPECT_FALSE(reader.End("sample").has_value());
}

TEST(Bytes, StringsAreBoundedTwice) {
  ByteWriter writer;
  writer.String("12345678");
  EXPECT_EQ(ByteReader(writer.bytes()).String(8, "name").value(), "12345678");
  EXPECT_FALSE(ByteReader(writer.bytes()).String(7, "name").has_value());
  ByteWriter liar;
  liar.U32(0xffffffff);
  EXPECT_FALSE(ByteReader(liar.bytes()).ByteString(~size_t{0}, "blob").has_value());
}

TEST(Bytes, FrameComesBack) {
  const auto bytes = SampleFrame();
  const auto frame = OpenFrame(kMagic, 3, bytes, "sample");
  ASSERT_TRUE(frame.has_value()) << frame.error().message;
  EXPECT_EQ(frame->version, 3);
  ByteReader reader(frame->payload);
  EXPECT_EQ(reader.U64("id").value(), 0x0123456789abcdef);
  EXPECT_EQ(reader.String(16, "name").value(), "peer");
  EXPECT_TRUE(OpenFrame(kMagic, 1, SealFrame(kMagic, 1, {}), "nothing").has_value());
}

TEST(Bytes, EveryTruncationAndEveryFlippedBitIsRefused) {
  const auto bytes = SampleFrame();
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(OpenFrame(kMagic, 3, std::span(bytes).first(n), "sample").has_value()) << n;
  }
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(OpenFrame(kMagic, 0xffff, flipped, "sample").has_value()) << bit;
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(OpenFrame(kMagic, 3, longer, "sample").has_value());
}

TEST(Bytes, NewerVersionsAndOtherKindsAreRefusedWithWords) {
  const auto bytes = SampleFrame(4);
  const auto newer = OpenFrame(kMagic, 3, bytes, "peer address");
  ASSERT_FALSE(newer.has_value());
  EXPECT_EQ(newer.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(newer.error().message.find("peer address has version 4"), std::string::npos);
  const auto other = OpenFrame(kMagic + 1, 4, bytes, "peer address");
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, ErrorCode::kInvalidArgument);
}

TEST(Bytes, RandomIdsDiffer) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(RandomId().value());
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_FALSE(seen.contains(0));
  EXPECT_TRUE(FillRandom({}).has_value());
}

TEST(Status, EveryCodeHasAName) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::kDataLoss); ++code) {
    EXPECT_FALSE(ErrorCodeName(static_cast<ErrorCode>(code)).empty());
  }
  EXPECT_EQ(ErrorCodeName(ErrorCode::kUnavailable), "UNAVAILABLE");
  EXPECT_EQ(ErrorCodeName(static_cast<ErrorCode>(99)), "UNKNOWN");
}

}  // namespace
}  // namespace jax_fabric
