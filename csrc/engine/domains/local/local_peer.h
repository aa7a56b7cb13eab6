// A peer of a local domain: how it is connected, and how its memory is reached. Driven by the domain's thread, except
// for what says otherwise.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_PEER_H_
#define JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_PEER_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "csrc/base/status.h"
#include "csrc/base/unique_fd.h"
#include "csrc/engine/domain.h"
#include "csrc/engine/domains/local/descriptor_client.h"
#include "csrc/engine/domains/local/lane_writer.h"
#include "csrc/engine/domains/local/local_address.h"
#include "csrc/engine/domains/local/local_domain.h"
#include "csrc/engine/domains/local/remote_memory.h"
#include "csrc/engine/domains/local/write_run.h"

namespace jax_fabric::local {

class LocalPeer {
 public:
  enum class Entered { kYes, kNotYet, kRefused };

  LocalPeer(PeerId id, const LocalAddress& address);

  PeerId id() const { return id_; }
  const LocalAddress& address() const { return address_; }
  const std::string& label() const { return label_; }
  std::string_view path() const;
  // Acquire, with the release in the .cc: whoever sees kReady sees the mailbox. Any thread.
  PeerState state() const { return state_.load(std::memory_order_acquire); }
  bool same_process() const { return same_process_; }
  bool closed() const { return mailbox_->closed(); }
  // Once it is closed, or refuses us.
  // Which of both it was, a domain that is being closed does not say at once.
  static constexpr std::string_view kRefused = "its domain was closed, or has removed this one";
  std::string_view WhyLost() const { return closed() ? "its domain was closed" : kRefused; }
  uint64_t max_message_bytes() const { return mailbox_->geometry().max_message_bytes; }
  LaneWriter& lane() { return *lane_; }
  // Readable when the peer's process is dead; -1 without.
  int pidfd() const { return pidfd_.get(); }

  // kConnecting to kReady. Nothing from PollConnect: call again.
  Status ConnectWithin(std::shared_ptr<Mailbox> mailbox, const ProcessIdentity& self, uint64_t incarnation);
  void StartConnect(const LocalDomainOptions& options);
  std::optional<Status> PollConnect(const LocalDomainOptions& options, const ProcessIdentity& self,
                                    uint64_t incarnation);
  // To kFailed: gives the lane up; what MapRemote returned stays. To kRemoved: everything goes.
  void Disconnect(PeerState state);

  // Before touching the peer's memory: checks key and range, and holds the region until Leave. With kRefused
  // `error` says why.
  Entered Enter(uint64_t key, uint64_t address, uint64_t length, Error& error);
  void Leave() { lane_->LeaveRegion(); }
  // Of the region entered last: only its owner can write to it, what goes there must go through bounce slots.
  bool bounces() const { return entered_bounces_; }
  // Copies into the entered region.
  Status Copy(uint64_t remote_address, const void* source, uint64_t length, bool streaming);

  // Copies `most` pages, or those before the first one that is outside of `source` or of the entered region; the first
  // is known to be inside. On an error `copied` of them are to be told of it.
  Status CopyPages(const PagesRequest& pages, uint32_t most, ByteView source, bool streaming, uint32_t& copied);

  // Any thread, in state kReady. Null with words in `error`.
  void* Map(uint64_t key, uint64_t address, uint64_t length, Error& error);

  // Of the long writes posted to it.
  WriteRun run;
  uint32_t bounced_writes = 0;  // that are on the way
  // What was answered with kAgain because the lane was full. The peer cannot wake us when there is room.
  bool starved_of_immediates = false;
  std::optional<uint64_t> starved_of_message;  // of this length

 private:
  Status Attach(const LocalDomainOptions& options, ReceivedDescriptors received, const ProcessIdentity& self,
                uint64_t incarnation);
  // Checks permission and range of the region that the key names; the region's key itself was checked by the caller.
  bool CheckRange(const RegionEntry& region, uint64_t address, uint64_t length, Error& error) const;
  bool ProbeProcessVm() const;
  Status CopyByProcessVm(uint64_t remote_address, const void* source, uint64_t length) const;
  Status CopyPagesByProcessVm(const PagesRequest& pages, uint32_t count) const;
  bool ProcessIsGone() const;

  const PeerId id_;
  const LocalAddress address_;
  const std::string label_;
  std::atomic<PeerState> state_{PeerState::kConnecting};
  bool same_process_ = false;
  bool process_vm_ = false;
  std::optional<DescriptorClient> connect_;
  std::unique_ptr<LaneWriter> lane_;
  UniqueFd pidfd_;

  // Changed by the driving thread under the mutex, which Map takes.
  std::mutex mutex_;
  std::shared_ptr<Mailbox> mailbox_;
  std::unique_ptr<RemoteMemory> memory_;

  // Of the entered region: its range; what to add to a remote address to have it here, without: by process_vm_writev.
  uint64_t entered_begin_ = 0;
  uint64_t entered_length_ = 0;
  bool entered_mapped_ = false;
  bool entered_bounces_ = false;
  uint64_t entered_shift_ = 0;
};

}  // namespace jax_fabric::local

#endif  // JAX_FABRIC_ENGINE_DOMAINS_LOCAL_LOCAL_PEER_H_
