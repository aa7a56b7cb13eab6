// What the double hands out as libibverbs' objects.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DOUBLE_OBJECTS_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DOUBLE_OBJECTS_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "csrc/engine/domains/nic/double/packet.h"

namespace jax_fabric::verbs_double {

using nic_double::Packet;
using nic_double::PacketHeader;

struct Memory : ibv_mr {
  unsigned access = 0;
  // Where its bytes are: at its address, but for a dma-buf, which this device has mapped.
  std::byte* bytes = nullptr;
  bool mapped = false;
  bool on_gpu = false;

  std::byte* At(uint64_t address) const { return bytes + (address - reinterpret_cast<uint64_t>(addr)); }
};

struct Route : ibv_ah {
  uint64_t device = 0;
  uint32_t incomplete = 0;  // datagrams whose completion nobody has polled
};

struct CompletionChannel : ibv_comp_channel {
  ibv_cq* queue = nullptr;  // the only one
};

struct CompletionQueue : ibv_cq {
  struct Entry {
    ibv_wc work;
    int64_t due_ns;
    Route* route;  // of a datagram; else null
  };
  std::deque<Entry> entries;
  bool overrun = false;
  bool armed = false;
  int64_t armed_ns = 0;
};

struct Receive {
  uint64_t id = 0;
  std::byte* address = nullptr;
  uint32_t length = 0;
  uint32_t key = 0;
};

struct ReceiveQueue : ibv_srq {
  size_t capacity = 0;
  std::deque<Receive> receives;
};

struct Work {
  uint64_t id = 0;
  uint64_t number = 0;  // of its message
  bool signaled = false;
  bool is_write = false;
  bool has_immediate = false;
  bool sent = false;
  uint32_t immediate = 0;
  const std::byte* source = nullptr;
  bool on_gpu = false;
  std::vector<std::byte> inlined;  // the source itself
  uint64_t length = 0;
  uint64_t offset = 0;  // bytes that have been sent
  uint32_t key = 0;     // of the source
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;
};

struct QueuePair : ibv_qp {
  uint32_t depth = 0;
  uint32_t receive_depth = 0;
  bool signal_all = false;
  uint32_t datagram_key = 0;
  unsigned access = 0;
  // The other end.
  uint64_t device = 0;
  uint32_t number = 0;
  // Sending.
  uint8_t timeout = 0;
  uint8_t retries = 0;
  uint8_t not_ready_retries = 0;
  std::deque<Work> work;
  size_t next = 0;  // of work: what is sent next
  uint64_t messages = 0;
  uint64_t next_packet = 0;
  uint64_t acknowledged = 0;  // packets below it
  int64_t progress_ns = 0;
  // Receiving.
  uint64_t expected_packet = 0;
  uint64_t complete = 0;  // messages
  bool has_receive = false;
  Receive receive;                 // of the message that is coming
  std::deque<Packet> waiting;      // for a receive
  int64_t not_ready_until_ns = 0;  // an injected fault
  bool not_ready_drawn = false;
  int64_t busy_ns = 0;           // when the sender was told last
  std::deque<Receive> receives;  // where there is no shared queue
};

}  // namespace jax_fabric::verbs_double

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DOUBLE_OBJECTS_H_
