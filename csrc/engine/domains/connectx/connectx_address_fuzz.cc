// What comes from peers: addresses, and the ends of connections in handshakes.
#include "csrc/engine/domains/connectx/connectx_address.h"
#include "csrc/fuzz/fuzz_input.h"

using jax_fabric::Bytes;
using jax_fabric::connectx::ConnectionEnd;
using jax_fabric::connectx::ConnectXAddress;
using jax_fabric::fuzz::FrameOf;
using jax_fabric::fuzz::Require;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Bytes address_example = ConnectXAddress().Seal();
  static const Bytes end_example = ConnectionEnd().Seal();
  const Bytes address_bytes = FrameOf({data, size}, address_example);
  if (const auto address = ConnectXAddress::Open(address_bytes); address.has_value()) {
    Require(address->message_credits > 0 && address->datagram_queue_pair <= 0xffffff, "an address can be sent to");
    Require(address->Seal() == address_bytes, "what is written is read");
  }
  const Bytes end_bytes = FrameOf({data, size}, end_example);
  if (const auto end = ConnectionEnd::Open(end_bytes); end.has_value()) {
    for (const auto& each : end->queue_pairs) Require(each.number <= 0xffffff, "queue pairs have 24 bits");
    Require(end->Seal() == end_bytes, "what is written is read");
  }
  return 0;
}
