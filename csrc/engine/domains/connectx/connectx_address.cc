#include "csrc/engine/domains/connectx/connectx_address.h"

#include <algorithm>
#include <string_view>

#include "csrc/base/byte_reader.h"
#include "csrc/base/byte_writer.h"

namespace jax_fabric::connectx {
namespace {

constexpr uint32_t kAddressMagic = 0x4158434a;  // "JCXA"
constexpr uint32_t kEndMagic = 0x4558434a;      // "JCXE"
constexpr uint16_t kVersion = 1;
constexpr uint32_t kMaxQueuePair = 0xffffff;
constexpr uint8_t kLastLinkLayer = 2;
constexpr uint8_t kLastMtu = 5;
constexpr size_t kMaxCaller = 256;
constexpr std::string_view kAddress = "address of a connectx domain";
constexpr std::string_view kEnd = "end of a connection";

}  // namespace

Bytes ConnectXAddress::Seal() const {
  ByteWriter writer;
  writer.U64(incarnation);
  for (const uint8_t byte : port.gid) writer.U8(byte);
  writer.U16(port.lid);
  writer.U8(port.link_layer);
  writer.U8(port.mtu);
  writer.U32(datagram_queue_pair);
  writer.U32(datagram_key);
  writer.U32(message_bytes);
  writer.U32(message_credits);
  return SealFrame(kAddressMagic, kVersion, writer.bytes());
}

Result<ConnectXAddress> ConnectXAddress::Open(ByteView bytes) {
  JF_ASSIGN_OR_RETURN(const Frame frame, OpenFrame(kAddressMagic, kVersion, bytes, kAddress));
  ByteReader reader(frame.payload);
  ConnectXAddress address;
  JF_ASSIGN_OR_RETURN(address.incarnation, reader.U64("incarnation"));
  for (uint8_t& byte : address.port.gid) {
    JF_ASSIGN_OR_RETURN(byte, reader.U8("gid"));
  }
  JF_ASSIGN_OR_RETURN(address.port.lid, reader.U16("lid"));
  JF_ASSIGN_OR_RETURN(address.port.link_layer, reader.U8("link layer"));
  JF_ASSIGN_OR_RETURN(address.port.mtu, reader.U8("mtu"));
  JF_ASSIGN_OR_RETURN(address.datagram_queue_pair, reader.U32("datagram queue pair"));
  JF_ASSIGN_OR_RETURN(address.datagram_key, reader.U32("datagram key"));
  JF_ASSIGN_OR_RETURN(address.message_bytes, reader.U32("message bytes"));
  JF_ASSIGN_OR_RETURN(address.message_credits, reader.U32("message credits"));
  JF_RETURN_IF_ERROR(reader.End(kAddress));
  const PortAddress& port = address.port;
  if (port.link_layer == 0 || port.link_layer > kLastLinkLayer || port.mtu == 0 || port.mtu > kLastMtu ||
      std::all_of(port.gid.begin(), port.gid.end(), [](uint8_t byte) { return byte == 0; }) ||
      address.datagram_queue_pair > kMaxQueuePair || address.message_credits == 0) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: it names no port, or takes no messages", kAddress);
  }
  return address;
}

Bytes ConnectionEnd::Seal() const {
  ByteWriter writer;
  for (const QueuePairAddress& each : queue_pairs) {
    writer.U32(each.number);
    writer.U32(each.first_packet);
  }
  writer.U64(renews);
  writer.ByteString(caller);
  return SealFrame(kEndMagic, kVersion, writer.bytes());
}

Result<ConnectionEnd> ConnectionEnd::Open(ByteView bytes) {
  JF_ASSIGN_OR_RETURN(const Frame frame, OpenFrame(kEndMagic, kVersion, bytes, kEnd));
  ByteReader reader(frame.payload);
  ConnectionEnd end;
  for (QueuePairAddress& each : end.queue_pairs) {
    JF_ASSIGN_OR_RETURN(each.number, reader.U32("queue pair"));
    JF_ASSIGN_OR_RETURN(each.first_packet, reader.U32("first packet"));
    if (each.number > kMaxQueuePair || each.first_packet > kMaxQueuePair) {
      return MakeError(ErrorCode::kInvalidArgument, "{}: a queue pair has a number of 24 bits", kEnd);
    }
  }
  JF_ASSIGN_OR_RETURN(end.renews, reader.U64("renewed attempt"));
  JF_ASSIGN_OR_RETURN(const ByteView caller, reader.ByteString(kMaxCaller, "caller"));
  end.caller.assign(caller.begin(), caller.end());
  JF_RETURN_IF_ERROR(reader.End(kEnd));
  return end;
}

}  // namespace jax_fabric::connectx
