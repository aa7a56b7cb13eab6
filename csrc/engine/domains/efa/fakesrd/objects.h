// What the fake device hands out as objects of libibverbs and libefa.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_OBJECTS_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_OBJECTS_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "csrc/engine/domains/efa/fakesrd/efa_abi.h"
#include "csrc/engine/domains/efa/fakesrd/status.h"
#include "csrc/engine/domains/nic/double/packet.h"

namespace jax_fabric::fake_srd {

using nic_double::Packet;
using nic_double::PacketHeader;

class Device;

struct Memory : ibv_mr {
  uint64_t first = 0;  // the address that peers and requests name
  unsigned access = 0;
};

struct Route : ibv_ah {
  uint64_t device = 0;
  uint16_t number = 0;
};

struct Completion {
  uint64_t id = 0;
  Status status = Status::kOk;
  ibv_wc_opcode opcode = IBV_WC_SEND;
  uint32_t queue_pair = 0;
  uint32_t bytes = 0;
  bool has_immediate = false;
  bool unsolicited = false;  // it took no receive
  uint32_t immediate = 0;
  uint32_t source_queue_pair = 0;
  uint64_t source = 0;  // the device
  uint16_t route = kUnknownRoute;
};

struct CompletionQueue : ibv_cq_ex {
  struct Advanced : efadv_cq {
    CompletionQueue* queue = nullptr;
  };
  Device* device = nullptr;
  Advanced advanced;
  std::deque<Completion> entries;
  Completion current;
  bool overrun = false;
};

struct Receive {
  uint64_t id = 0;
  std::vector<ibv_sge> parts;
};

struct QueuePair;

// A send or a write, from its post to its completion.
struct Request {
  QueuePair* pair = nullptr;
  uint64_t id = 0;
  uint64_t number = 0;  // of this device
  ibv_wc_opcode opcode = IBV_WC_SEND;
  bool has_immediate = false;
  uint32_t immediate = 0;
  uint64_t device = 0;  // where it goes
  uint32_t queue_pair = 0;
  uint32_t queue_key = 0;
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;
  std::vector<ibv_sge> parts;
  bool is_inline = false;
  std::vector<std::byte> inlined;
  uint64_t length = 0;
  uint64_t segment_bytes = 0;
  std::vector<uint64_t> segments;  // offsets that have not been sent, the next one last
  uint32_t unanswered = 0;         // segments
  int64_t not_before_ns = 0;
  int64_t progress_ns = 0;
};

// A message or an immediate that has arrived and has no receive yet.
struct Waiting {
  Packet packet;
  int64_t due_ns = 0;
  uint32_t tries = 0;
};

struct QueuePair : ibv_qp_ex {
  static constexpr uint32_t kForEver = 7;  // of retries

  Device* device = nullptr;
  CompletionQueue* send_queue = nullptr;
  CompletionQueue* receive_queue = nullptr;
  uint32_t depth = 0;
  uint32_t receive_depth = 0;
  uint32_t key = 0;
  uint32_t retries = kForEver;  // when there is no receive
  bool unsolicited = false;
  std::vector<Request> batch;  // between wr_start and wr_complete
  uint32_t outstanding = 0;
  std::deque<Receive> receives;
  std::deque<Waiting> waiting;
};

}  // namespace jax_fabric::fake_srd

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_OBJECTS_H_
