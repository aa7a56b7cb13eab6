#include "csrc/engine/grant_message.h"

#include "csrc/base/byte_reader.h"
#include "csrc/base/byte_writer.h"

namespace jax_fabric {
namespace {

constexpr uint32_t kMagic = 0x5347464a;  // "JFGS"
constexpr uint16_t kVersion = 1;

Result<GrantMessage> Read(ByteView bytes) {
  JF_ASSIGN_OR_RETURN(const Frame frame, OpenFrame(kMagic, kVersion, bytes, "grant message"));
  ByteReader reader(frame.payload);
  GrantMessage message;
  JF_ASSIGN_OR_RETURN(message.kind, reader.Enumerator(GrantMessage::Kind::kStopped, "kind"));
  JF_ASSIGN_OR_RETURN(message.grant, reader.U64("grant"));
  JF_ASSIGN_OR_RETURN(message.first_open, reader.U64("first open grant"));
  JF_ASSIGN_OR_RETURN(message.succeeded, reader.U64("succeeded writes"));
  JF_ASSIGN_OR_RETURN(message.failed, reader.U64("failed writes"));
  return message;
}

// Most messages are users': those are told apart without words about them.
bool HasMagic(ByteView bytes) {
  ByteReader reader(bytes);
  return bytes.size() >= kFrameOverhead && reader.U32("magic").value() == kMagic;
}

}  // namespace

Bytes GrantMessage::Serialize() const {
  ByteWriter writer;
  writer.U8(static_cast<uint8_t>(kind));
  writer.U64(grant);
  writer.U64(first_open);
  writer.U64(succeeded);
  writer.U64(failed);
  return SealFrame(kMagic, kVersion, writer.bytes());
}

std::optional<GrantMessage> GrantMessage::Parse(ByteView bytes) {
  if (!HasMagic(bytes)) return std::nullopt;
  Result<GrantMessage> message = Read(bytes);
  return message.has_value() ? std::optional(*message) : std::nullopt;
}

}  // namespace jax_fabric
