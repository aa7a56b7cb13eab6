// Wire: how packets get from one device of a double (of libibverbs, of an SRD NIC) to another: in their order, without
// loss, unless the other one is gone. Within a process by a queue, between processes by Unix datagrams.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_NIC_DOUBLE_WIRE_H_
#define JAX_FABRIC_ENGINE_DOMAINS_NIC_DOUBLE_WIRE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/base/unique_fd.h"
#include "csrc/engine/domains/nic/double/packet.h"

namespace jax_fabric::nic_double {

class Wire {
 public:
  static constexpr size_t kMaxPayload = 32 * 1024;

  explicit Wire(uint64_t device);
  ~Wire();

  // False: the socket could not be made.
  bool ok() const { return socket_.get() >= 0 && wake_->fd.get() >= 0; }
  void Send(uint64_t to, Packet packet);
  // Whether there is such a device, in whatever process; one that is not polled or stopped counts.
  bool Reaches(uint64_t device) const;
  // Tries again what other processes' devices had no room for. Whether something is left.
  bool Flush();
  // Sleeps until something comes, Wake, or the time is over.
  void Wait(int timeout_ms);
  void Wake();
  // Everything that has come.
  std::vector<Packet> Receive();

 private:
  struct Inbox {
    std::mutex mutex;
    std::vector<Packet> packets;
    UniqueFd fd;
  };
  struct Directory;
  static Directory& directory();

  const uint64_t device_;
  UniqueFd socket_;
  std::shared_ptr<Inbox> wake_;
  std::deque<std::pair<uint64_t, Packet>> waiting_;  // for other processes
};

}  // namespace jax_fabric::nic_double

#endif  // JAX_FABRIC_ENGINE_DOMAINS_NIC_DOUBLE_WIRE_H_
