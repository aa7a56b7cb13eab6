// Device: one opened fake SRD device: its objects, its end of the wire, and what hardware does, which is done by a
// thread, and by whoever posts and polls meanwhile.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_DEVICE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_DEVICE_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "csrc/engine/domains/efa/fakesrd/fake_srd.h"
#include "csrc/engine/domains/efa/fakesrd/objects.h"
#include "csrc/engine/domains/nic/double/wire.h"

namespace jax_fabric::fake_srd {

class Device {
 public:
  static constexpr uint64_t kMaxMessageBytes = 8928;
  static constexpr uint64_t kMaxWriteBytes = uint64_t{1} << 30;
  static constexpr uint32_t kMaxRequests = 2048;
  // Fewer than EFA has: libfabric makes a buffer of a packet for each, at every endpoint.
  static constexpr uint32_t kMaxReceives = 1024;
  static constexpr uint32_t kMaxParts = 2;
  static constexpr uint32_t kMaxInlineBytes = 32;
  static constexpr int kMaxCompletions = 32768;

  explicit Device(uint64_t id);
  ~Device();

  bool ok() const { return wire_.ok(); }
  uint64_t id() const { return id_; }
  void SetFaults(const Faults& faults);
  Statistics statistics();

  // Each as the function of libibverbs, which calls it; errors are errno's.
  void Register(Memory& memory);
  void Deregister(Memory& memory);
  void AddRoute(Route& route);
  void RemoveRoute(Route& route);
  void AddQueuePair(QueuePair& pair);
  void RemoveQueuePair(QueuePair& pair);
  int Modify(QueuePair& pair, const ibv_qp_attr& attributes, int mask);
  // Takes all of pair.batch, or nothing.
  int Post(QueuePair& pair);
  int PostReceive(QueuePair& pair, ibv_recv_wr* work, ibv_recv_wr** bad);
  // The next completion into queue.current: 0, ENOENT, or what it has come to.
  int Poll(CompletionQueue& queue);

 private:
  struct Peer {
    uint16_t number = 0;
    uint32_t routes = 0;
    uint32_t unanswered = 0;  // segments
    bool answered = false;    // ever
  };

  // device.cc
  void Run();
  // Whether there is more to do at once.
  bool Progress();
  void KeepTime(int64_t now_ns);
  bool Draw(double probability) { return probability > 0 && std::uniform_real_distribution<>()(random_) < probability; }
  Memory* FindMemory(uint32_t key, uint64_t address, uint64_t length, unsigned access) const;
  void Complete(CompletionQueue& queue, const Completion& completion);
  void Flush(QueuePair& pair);

  // device_send.cc
  bool LocalKeysFit(const Request& request) const;
  bool SomeLeaveSoon(int64_t now_ns);
  // Whether a segment left.
  bool SendSome(int64_t now_ns);
  void SendSegment(Request& request);
  void Finish(uint64_t number, Status status);
  void Forget(Request& request);
  void OnAnswer(const PacketHeader& header);

  // device_receive.cc
  void OnPacket(Packet packet);
  void OnWrite(QueuePair& pair, Packet packet);
  // Message, or immediate: false where there is no receive for it.
  bool Deliver(QueuePair& pair, const Packet& packet);
  void DeliverOrWait(QueuePair& pair, Packet packet);
  Status Scatter(const Receive& receive, const std::vector<std::byte>& bytes) const;
  void RetryWaiting(QueuePair& pair, int64_t now_ns);
  void Answer(const PacketHeader& to, PacketHeader::Kind kind, Status status, bool last);

  const uint64_t id_;
  std::mutex mutex_;  // of everything below
  Faults faults_;
  Statistics statistics_;
  std::mt19937_64 random_;
  nic_double::Wire wire_;
  std::unordered_map<uint32_t, QueuePair*> pairs_;
  std::unordered_map<uint32_t, Memory*> memory_;
  std::unordered_map<uint64_t, Peer> peers_;
  std::map<uint64_t, std::unique_ptr<Request>> requests_;            // by their numbers
  std::vector<Request*> unsent_;                                     // those that have segments to send
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> bytes_arrived_;  // of writes of several segments, by device, number
  uint64_t next_request_ = 0;
  uint32_t next_queue_pair_ = 0;
  uint16_t next_route_ = 0;
  int64_t kept_time_ns_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

int64_t NowNs();

}  // namespace jax_fabric::fake_srd

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_DEVICE_H_
