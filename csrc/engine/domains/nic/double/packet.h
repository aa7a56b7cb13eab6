// Packet: what devices of a double send each other.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_NIC_DOUBLE_PACKET_H_
#define JAX_FABRIC_ENGINE_DOMAINS_NIC_DOUBLE_PACKET_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace jax_fabric::nic_double {

struct PacketHeader {
  enum class Kind : uint8_t {
    kData = 1,  // a part of a write or a message
    kAck,       // everything up to `number` has arrived; `message` messages are complete
    kRefusal,   // message `message` ends with `status`
    kBusy,      // there is no receive for it yet
    kDatagram,
  };
  Kind kind = Kind::kData;
  bool is_write = false;
  bool has_immediate = false;
  bool last = false;    // of its message
  uint32_t status = 0;  // of a refusal, as its double has them
  uint64_t from = 0;    // the device
  uint32_t to_queue_pair = 0;
  uint32_t from_queue_pair = 0;
  uint64_t number = 0;   // of the packet, in its connection
  uint64_t message = 0;  // of the message, in its connection
  uint64_t address = 0;  // where its bytes go
  uint64_t total = 0;    // bytes of the message
  uint64_t offset = 0;   // of its bytes in the message
  uint32_t key = 0;      // of the memory, or of the datagram's queue pair
  uint32_t queue_key = 0;
  uint32_t retries = 0;  // how often the sender tries again when there is no receive
  uint32_t immediate = 0;
};

struct Packet {
  PacketHeader header;
  std::vector<std::byte> bytes;
};

}  // namespace jax_fabric::nic_double

#endif  // JAX_FABRIC_ENGINE_DOMAINS_NIC_DOUBLE_PACKET_H_
