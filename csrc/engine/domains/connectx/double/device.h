// Device: one opened device of the double: its objects, its end of the wire, and a thread that does what hardware does.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DOUBLE_DEVICE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DOUBLE_DEVICE_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "csrc/engine/domains/connectx/double/objects.h"
#include "csrc/engine/domains/connectx/double/verbs_double.h"
#include "csrc/engine/domains/nic/double/wire.h"

namespace jax_fabric::verbs_double {

using nic_double::Wire;

// What there is to be opened.
struct DeviceModel {
  const char* name;
  ibv_port_state state;
  ibv_mtu mtu;
};

class Device {
 public:
  static constexpr uint64_t kMaxMessage = uint64_t{1} << 30;
  static constexpr uint32_t kMaxWork = 16384;
  static constexpr uint32_t kMaxInline = 256;

  Device(const DeviceModel& model, uint64_t id, const Faults& faults);
  ~Device();

  bool ok() const { return wire_.ok(); }
  const DeviceModel& model() const { return model_; }
  uint64_t id() const { return id_; }
  const Faults& faults() const { return faults_; }
  // Objects that have not been destroyed.
  uint64_t objects() const { return objects_; }
  void CountObject(int change) { objects_ += static_cast<uint64_t>(change); }

  // Each as the function of libibverbs, which calls it; errors are errno's.
  int Register(Memory& memory);
  void Deregister(Memory& memory);
  int Poll(CompletionQueue& queue, int count, ibv_wc* work);
  void AddCompletionQueue(CompletionQueue& queue);
  void RemoveCompletionQueue(CompletionQueue& queue);
  // Of entries that come from now on, the first one makes the channel readable.
  int Arm(CompletionQueue& queue);
  void AddQueuePair(QueuePair& pair);
  void RemoveQueuePair(QueuePair& pair);
  int Modify(QueuePair& pair, const ibv_qp_attr& attributes, int mask);
  // Not before its datagrams are complete: what a device would make of them, each driver says otherwise.
  int DestroyRoute(Route* route);
  int PostSend(QueuePair& pair, ibv_send_wr* work, ibv_send_wr** bad);
  int PostReceive(std::deque<Receive>& receives, size_t capacity, ibv_recv_wr* work, ibv_recv_wr** bad);

 private:
  void Run();
  void KeepTime();
  bool Draw(double probability) { return probability > 0 && std::uniform_real_distribution<>()(random_) < probability; }

  // device.cc
  const Memory* FindMemory(uint32_t key, uint64_t address, uint64_t length, unsigned access) const;
  void Complete(ibv_cq* queue, const ibv_wc& work, Route* route = nullptr);
  static void Notify(CompletionQueue& queue);
  void NotifyOfDelayed(int64_t now_ns);
  void CompleteWork(QueuePair& pair, const Work& work, ibv_wc_status status, Route* route = nullptr);
  void CompleteReceive(QueuePair& pair, const Receive& receive, ibv_wc_status status, const PacketHeader& header);
  // Into the error state: everything comes back.
  void Fail(QueuePair& pair);

  // device_connection.cc
  int PostOne(QueuePair& pair, const ibv_send_wr& request);
  void SendWork(QueuePair& pair);
  void SendPart(QueuePair& pair, Work& work);
  void OnPacket(Packet packet);
  void OnData(QueuePair& pair, Packet packet);
  // Whether it is over with the packet; else there is no receive for it.
  bool Take(QueuePair& pair, const Packet& packet);
  bool TakeReceive(QueuePair& pair);
  void Refuse(QueuePair& pair, const PacketHeader& header, ibv_wc_status status);
  void Answer(QueuePair& pair, PacketHeader::Kind kind);
  void RetryWaiting(QueuePair& pair);
  void OnAck(QueuePair& pair, const PacketHeader& header);
  void OnRefusal(QueuePair& pair, const PacketHeader& header);

  // device_datagram.cc
  int PostDatagram(QueuePair& pair, const ibv_send_wr& request);
  void OnDatagram(QueuePair& pair, const Packet& packet);

  const DeviceModel model_;
  const uint64_t id_;
  const Faults faults_;
  std::mutex mutex_;  // of everything below
  std::mt19937_64 random_;
  Wire wire_;
  std::unordered_map<uint32_t, QueuePair*> pairs_;
  std::unordered_map<uint32_t, Memory*> memory_;
  std::vector<CompletionQueue*> queues_;
  std::optional<std::pair<uint64_t, Packet>> late_;  // a datagram that is overtaken by the next one
  uint32_t next_number_ = 0;
  uint32_t next_key_ = 0;
  std::atomic<uint64_t> objects_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

int64_t NowNs();

}  // namespace jax_fabric::verbs_double

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONNECTX_DOUBLE_DEVICE_H_
