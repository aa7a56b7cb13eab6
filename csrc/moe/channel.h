// One channel of one rank: exchanges with all ranks of the context, one after the other. A call takes one of them, or
// one for each of its rounds (kernels/rounds.h).
//
// The exchange rule. Exchange n uses the slots and the immediate of n's parity, and every pair of ranks exchanges one
// immediate. A rank packs exchange n + 1 only after it has unpacked exchange n. So when B's message n + 1 is at A, B
// has unpacked n, and A may write n + 2 into B's slots of n's parity: no barrier is ever sent. Counting is safe for
// the same reason: while A waits for the immediates of n, no peer can send those of n + 2, which share the id.
//
// Which call is next: the ranks may start independent calls in different orders, so rank 0 (or, if it is absent, the
// first rank that takes part: the leader) numbers them in the order in which they start there and announces it
// (announcement_ring.h). All ranks run the calls in this order, and know after
// the first round how many a call takes: so they agree on the numbers of exchanges, too. A call that starts elsewhere
// waits for its number, then for its turn. Neither wait holds a thread, and nothing else waits for a call but what
// needs its result: a program may run its calls one after the other or all at once.
//
// Everything below runs on the context's strand; only Submit and the worker's callbacks come from outside.
#ifndef JAX_FABRIC_MOE_CHANNEL_H_
#define JAX_FABRIC_MOE_CHANNEL_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/strand.h"
#include "csrc/moe/failure_notice.h"
#include "csrc/moe/moe_config.h"
#include "csrc/moe/notice_board.h"
#include "csrc/moe/operation.h"
#include "csrc/moe/operation_list.h"
#include "csrc/moe/peer_table.h"
#include "csrc/moe/result_request.h"
#include "csrc/moe/ticket_book.h"

namespace jax_fabric::moe {

class Channel {
 public:
  // All arguments but `index` outlive the channel.
  static Result<std::unique_ptr<Channel>> Create(int32_t index, const MoeConfig& config, const PeerTable& peers,
                                                 DomainGroup* group, Strand* strand);
  ~Channel();

  // Thread-safe. May run the operation, and others, on this thread.
  void Submit(ExchangeOperation* operation);
  // Thread-safe: the second half of a StartedExchange. May run it, and others, on this thread.
  void Attach(ResultRequest* request);

  // On the strand: every operation ends with kCancelled, and so does every later one, unless one has ended with another
  // error before. Idempotent.
  void Close();
  // From any thread: why the channel refuses to go on, or null. Valid as long as the channel.
  const Error* error() const { return visible_poison_.load(std::memory_order_acquire); }
  // True when no callback of the worker can come any more; for teardown, on the strand.
  bool Quiet() const;
#ifdef JAX_FABRIC_MUTANTS
  // Everything that decides what it does next, but for its operations and its memory; for explorations.
  std::string DescribeState() const;
#endif

 private:
  // A call from the worker, carried over to the strand.
  struct Signal {
    Channel* channel = nullptr;
    void (Channel::*handler)(Signal&) = nullptr;
    Task task;
    bool outstanding = false;  // on the strand
    std::optional<Error> error;
    int parity = 0;
    std::unique_ptr<PreparedScatter> scatter;  // of this parity, or of this ring entry
  };
  Channel(int32_t index, const MoeConfig& config, const PeerTable& peers, DomainGroup* group, Strand* strand);
  Status Prepare();
  Result<std::unique_ptr<PreparedScatter>> PrepareExchange(int parity);
  Result<std::unique_ptr<PreparedScatter>> PrepareAnnouncement(int entry);
  WorkerCallback CallbackFor(Signal* signal);

  void OnSubmit(ExchangeOperation* operation);
  void OnAttach(ResultRequest* request);
  void NumberOperations();
  void Issue();
  void Announce(int64_t sequence);
  void Claim();
  void ExpectAnnouncement();
  void OnAnnouncement(Signal& signal);
  void OnAnnounced(Signal& signal);

  void Advance();
  bool StartNext();
  bool TakeNext(int64_t number);
  Status Send();
  bool FinishCurrent();
  Status UnpackCurrent();
  Status CheckMessages(const void* const* slots) const;
  Status CheckCapacity(const void* const* slots) const;
  void OnArrival(Signal& signal);
  void OnSent(Signal& signal);
  bool alone() const { return config_.PresentRanks() == 1; }
  bool leads() const { return peers_.rank == leader_; }
  bool pending() const { return current_ != nullptr || !numbered_.empty() || !unnumbered_.empty(); }
  void ArmTimer();
  void OnTimer(Signal& signal);
  void Poison(const Error& error);
  void GiveUp(const Error& error);
  void GiveUp(const Error& error, const FailureNotice& told);
  void Tell(const FailureNotice& notice);
  void OnNoticeSent(Signal&) {}
  void GiveUpIfPeerIsGone();
  void GiveUpSend(Error error);
  bool HasMessageOf(int32_t rank) const;
  Error NameAbsentRanks(const Error& cause) const;
  std::string NameTarget(const Error& error) const;
  Error NameBlockedTurn() const;
  Error NameLeader(const Error& cause) const;
  std::string NameOfCurrent() const;
  std::string NameOfPending() const;
  void* SendSlot(int32_t rank, int64_t parity);
  void* StagingSlot(int32_t rank, int64_t sequence) const;
  const void* OwnSlot(int32_t source, int64_t sequence) const;
  kernels::MessageStamp StampOf(int64_t sequence, uint64_t signature) const;

  const int32_t index_;
  const MoeConfig& config_;
  const int32_t leader_;
  const PeerTable& peers_;
  DomainGroup* const group_;
  Strand* const strand_;
  uint64_t losses_looked_at_;   // of the group's peers: so many
  bool has_lost_rank_ = false;  // or has one that has given up
  bool grace_over_ = false;     // of what was on its way when that was seen

  std::optional<Error> poison_;
  // Points to poison_ once it is set, never to change again; release there, acquire in error().
  std::atomic<const Error*> visible_poison_{nullptr};
  CallIdentifier identifier_;
  TicketBook tickets_;
  OperationList unnumbered_;
  OperationList numbered_;                // waiting for their turn
  int64_t finished_ = 0;                  // last call that has ended here
  int64_t exchanges_ = 0;                 // last exchange that is unpacked here
  ExchangeOperation* current_ = nullptr;  // call finished_ + 1
  int32_t round_ = 0;                     // of current_
  bool packed_ = false;                   // exchange exchanges_ + 1 is, for this round
  bool arrived_ = false;                  // all its messages are here
  uint64_t signature_ = 0;                // of current_
  Deadline deadline_;                     // of current_, all rounds together
  std::vector<void*> send_slots_;
  std::vector<const void*> receive_slots_;
  std::vector<int64_t> message_bytes_;
  std::vector<std::byte> absent_slot_;  // of the absent ranks, if there are any: to them and from them

  std::array<Signal, 2> arrivals_;
  std::array<Signal, 2> sends_;
  std::array<Signal, AnnouncementRing::kEntries> announcements_;
  Signal announcement_arrival_;
  Signal timer_;
  Signal notice_sent_;
  NoticeBoard notices_;
  bool timer_ends_grace_ = false;
  std::optional<Deadline> grace_end_;
  int64_t announcement_immediates_used_ = 0;
};

}  // namespace jax_fabric::moe

#endif  // JAX_FABRIC_MOE_CHANNEL_H_
