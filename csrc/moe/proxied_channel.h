// The host's part of a channel whose kernels run on a device, on the worker of the device's group. It brings their
// messages to the ranks that kernels cannot reach themselves, tells kernels when the messages of those are here, and
// finds out what has gone wrong. It makes no call into CUDA, which might wait for a kernel that waits for it.
//
// The exchange rule is that of channel.h; here the device numbers the exchanges, since it runs them one after the
// other. Kernels pack exchange n + 2 into the staging slots of n when n + 1 is done, so n + 1 is not done before n has
// left.
#ifndef JAX_FABRIC_MOE_PROXIED_CHANNEL_H_
#define JAX_FABRIC_MOE_PROXIED_CHANNEL_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "csrc/engine/domain_group.h"
#include "csrc/kernels/signals.h"
#include "csrc/moe/failure_notice.h"
#include "csrc/moe/host_line.h"
#include "csrc/moe/moe_config.h"
#include "csrc/moe/notice_board.h"
#include "csrc/moe/peer_table.h"

namespace jax_fabric::moe {

class ProxiedChannel {
 public:
  // In host memory that the device has mapped, but for the last; outlives the channel.
  struct DeviceWords {
    kernels::ChannelSignals* signals = nullptr;
    const int64_t* message_bytes = nullptr;  // [ranks] of this rank's messages, by the send kernels
    const uint8_t* missing = nullptr;        // [ranks] not 0: its message was not there at the deadline
    HostLine::Words* on_device = nullptr;    // in memory of the device, in the place of signals->host; or null
  };
  // `through_host`: [ranks] not 0 for ranks to which messages go from staging_memory to own_memory of `peers`, both
  // laid out as the configuration says. All arguments but `index` and `through_host` outlive the channel.
  static Result<std::unique_ptr<ProxiedChannel>> Create(int32_t index, const MoeConfig& config, const PeerTable& peers,
                                                        const std::vector<uint8_t>& through_host, DomainGroup* group,
                                                        const DeviceWords& words);

  // The worker polls from now on, without a pause where kernels wait for this host. Any thread.
  void StartPolling();
  // Afterwards it is not polled any more. Not from the worker. Idempotent.
  void StopPolling() { poller_.reset(); }
  // From any thread: waiting kernels leave, and what they would have waited for ends with kCancelled, unless something
  // has failed before. Idempotent.
  void Close();
  // From any thread: why the channel refuses to go on, or null. Valid as long as the channel. What kernels that have
  // ended have said is known.
  const Error* error();
  // From any thread: that a call since the last time had nothing to end, if one had; the channel goes on.
  std::optional<Error> TakeRefusal();
  // True when no callback of the worker can come any more; after Close, when nobody polls.
  bool Quiet() const { return outstanding_.load(std::memory_order_acquire) == 0; }

 private:
  struct Signal {
    ProxiedChannel* channel = nullptr;
    int64_t sequence = 0;
    std::unique_ptr<PreparedScatter> scatter;  // of sends
  };

  ProxiedChannel(int32_t index, const MoeConfig& config, const PeerTable& peers, DomainGroup* group,
                 const DeviceWords& words);
  Status Prepare(const std::vector<uint8_t>& through_host);
  // True: there was something to do.
  bool Poll();
  // What has gone wrong on the device, if it has, or with a rank for which it waited.
  void HearDevice();
  Status Post(int64_t sequence);
  void OnArrival(const Signal& signal, const Error* error);
  void OnSent(const Signal& signal, const Error* error);
  void FinishIfComplete();
  void ExpectAlarm();
  void OnAlarm(const Error* error);
  // An error of this rank, and what the others are told of it.
  struct Failure {
    Error error;
    FailureNotice told;
  };
  Failure FailureOf(Error error) const;
  Failure FailureOf(const NoticeBoard::Departure& departure) const;
  // Of the first rank that is lost or has given up, if one has.
  std::optional<Failure> FirstDeparture() const;
  Failure FailureOfDevice();
  void LookForDepartures();
  // True: a rank is lost or has given up, and its messages are not on their way any more.
  bool FindDeparture();
  void Refuse(const Failure& failure);
  // Under error_mutex_.
  void Tell(const FailureNotice& notice);
  void Stop(const Failure& failure);
  std::string Name(int64_t sequence) const;
  // Of the exchange whose wait ended at its deadline.
  std::string MissingRanks() const;
  Error ErrorOfDevice() const;

  const int32_t index_;
  const MoeConfig& config_;
  const PeerTable& peers_;
  DomainGroup* const group_;
  const DeviceWords words_;
  const HostLine host_line_;
  size_t entries_ = 0;
  std::vector<int32_t> entry_ranks_;

  // Of the worker.
  int64_t posted_ = 0;
  uint64_t losses_seen_ = 0;
  bool alarmed_ = false;              // a notice has come since FindDeparture has looked
  std::optional<Failure> departing_;  // found, and its messages may be on their way yet
  int64_t departed_since_ns_ = 0;
  bool rank_has_departed_ = false;

  std::array<Signal, 2> sends_, arrivals_;
  std::atomic<int32_t> outstanding_{0};
  // Of the worker, too: the last exchange that has arrived; of each parity, the last one that has left.
  int64_t arrived_ = 0;
  std::array<int64_t, 2> left_{};

  std::mutex error_mutex_;  // of what follows, down to refusals_seen_, but for reading what others have told
  std::optional<Error> error_;
  std::optional<Failure> departure_;  // of a rank; an error once somebody waits for it
  NoticeBoard notices_;
  int64_t refusals_seen_ = 0;
  // Points to error_ once it is set, never to change again; release there, acquire in error().
  std::atomic<const Error*> visible_error_{nullptr};
  std::unique_ptr<Poller> poller_;  // last: it uses the rest
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_PROXIED_CHANNEL_H_
