// Both blobs of the protocol that takes grants back: what an owner hands out, and what both sides say to each other.
#include "csrc/engine/grant_message.h"
#include "csrc/engine/write_grant.h"
#include "csrc/fuzz/fuzz_input.h"

using jax_fabric::Bytes;
using jax_fabric::GrantMessage;
using jax_fabric::WriteGrant;
using jax_fabric::fuzz::FuzzInput;
using jax_fabric::fuzz::Require;

namespace {

void FuzzGrant(FuzzInput input) {
  static const Bytes example = WriteGrant{.id = 3, .first_open = 2, .immediate = 1}.Serialize();
  const Bytes bytes = jax_fabric::fuzz::FrameOf(input, example);
  Require(!GrantMessage::Parse(bytes), "a grant is no message");
  const auto parsed = WriteGrant::Parse(bytes);
  if (!parsed.has_value()) return;
  Require(parsed->id != 0 && parsed->first_open <= parsed->id, "a grant is an open one");
  const auto reparsed = WriteGrant::Parse(parsed->Serialize());
  Require(reparsed.has_value() && *reparsed == *parsed, "what is written is read");
}

void FuzzMessage(FuzzInput input) {
  static const Bytes example = GrantMessage{.grant = 1}.Serialize();
  const Bytes bytes = jax_fabric::fuzz::FrameOf(input, example);
  Require(!WriteGrant::Parse(bytes).has_value(), "a message is no grant");
  const auto parsed = GrantMessage::Parse(bytes);
  if (!parsed) return;
  Require(parsed->kind == GrantMessage::Kind::kRevoke || parsed->kind == GrantMessage::Kind::kStopped,
          "a message is of a known kind");
  const Bytes again = parsed->Serialize();
  Require(again.size() <= bytes.size(), "a message has no more fields than what it was parsed from");
  const auto reparsed = GrantMessage::Parse(again);
  Require(reparsed && reparsed->Serialize() == again, "what is written is read");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  if (input.Byte() % 2 == 0) {
    FuzzGrant(input);
  } else {
    FuzzMessage(input);
  }
  return 0;
}
