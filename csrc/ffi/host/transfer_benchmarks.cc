#include "csrc/ffi/host/transfer_benchmarks.h"

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "csrc/engine/scatter.h"

namespace jax_fabric::ffi_layer {
namespace {

int64_t NowNs() { return SteadyClock::Get().NowNs(); }

// The clock is looked at now and then only: it would be a good part of what is measured.
template <typename Ready>
bool SpinUntil(Deadline deadline, Ready ready) {
  for (uint32_t i = 1; !ready(); ++i) {
    if (i % 4096 != 0) continue;
    if (deadline.Passed(SteadyClock::Get())) return false;
    std::this_thread::yield();  // two spinning sides on one core would not meet
  }
  return true;
}

Error Late(const char* what) {
  return {ErrorCode::kDeadlineExceeded, fmt::format("{}: the other side did not answer in time", what)};
}

// On the worker, after it was started. Two scatters in turn: an answer may be seen before the own write's completion.
class Bouncer {
 public:
  Bouncer(DomainGroup& group, const Bounce& bounce, Deadline deadline)
      : group_(group), bounce_(bounce), deadline_(deadline) {
    times_.reserve(bounce.rounds + 1);
  }

  Status Prepare() {
    ScatterEntry entry;
    entry.peer = bounce_.peer;
    entry.source = bounce_.length == 0 ? nullptr : bounce_.source.address;
    entry.source_memory = bounce_.source;
    entry.target = bounce_.target;
    entry.length = bounce_.length;
    entry.immediate = bounce_.outgoing;
    for (auto& scatter : scatters_) {
      JF_ASSIGN_OR_RETURN(scatter, group_.PrepareScatter({&entry, 1}));
    }
    return {};
  }

  void Start() {
    if (bounce_.first) {
      times_.push_back(NowNs());
      if (Status status = Post(); !status.has_value()) return End(std::move(status));
    }
    if (Status status = Expect(); !status.has_value()) End(std::move(status));
  }

  bool ended() const { return ended_.load(std::memory_order_acquire); }  // partner: End
  // Once ended.
  const Status& status() const { return status_; }
  std::vector<int64_t> RoundTrips() const {
    std::vector<int64_t> trips;
    for (size_t i = 1; i < times_.size(); ++i) trips.push_back(times_[i] - times_[i - 1]);
    return trips;
  }
  // Both posts have ended, so that the scatters may go.
  bool idle() const { return scatters_[0]->idle() && scatters_[1]->idle(); }

 private:
  Status Expect() {
    WorkerCallback callback;
    callback.context = this;
    callback.function = [](void* context, const Error* error) { static_cast<Bouncer*>(context)->OnArrival(error); };
    return group_.ExpectImmediate(bounce_.incoming, 1, deadline_, callback);
  }

  Status Post() { return scatters_[posts_++ % 2]->Post(deadline_, {}); }

  void OnArrival(const Error* error) {
    if (error != nullptr) return End(tl::unexpected<Error>(*error));
    times_.push_back(NowNs());
    ++arrivals_;
    const bool is_last = arrivals_ == bounce_.rounds;
    if (!is_last || !bounce_.first) {
      if (Status status = Post(); !status.has_value()) return End(std::move(status));
    }
    // Last, and nothing is expected once it has ended: then this object may go.
    if (is_last) return End({});
    if (Status status = Expect(); !status.has_value()) End(std::move(status));
  }

  void End(Status status) {
    status_ = std::move(status);
    ended_.store(true, std::memory_order_release);
  }

  DomainGroup& group_;
  const Bounce bounce_;
  const Deadline deadline_;
  std::array<std::unique_ptr<PreparedScatter>, 2> scatters_;
  std::vector<int64_t> times_;
  uint32_t posts_ = 0;
  uint32_t arrivals_ = 0;
  Status status_;
  std::atomic<bool> ended_{false};
};

}  // namespace

Result<std::vector<int64_t>> BounceWord(uint64_t* word, bool first, uint32_t rounds, Deadline deadline) {
  std::atomic_ref<uint64_t> shared(*word);
  std::vector<int64_t> trips;
  trips.reserve(rounds);
  // Even: the first side's turn.
  const uint64_t base = first ? 0 : 1;
  for (uint64_t round = 0; round < rounds; ++round) {
    const int64_t begin = NowNs();
    if (first) shared.store(2 * round + 1, std::memory_order_release);
    const uint64_t awaited = first ? 2 * round + 2 : 2 * round + base;
    if (!SpinUntil(deadline, [&] { return shared.load(std::memory_order_acquire) == awaited; })) {
      return tl::unexpected<Error>(Late("bounce word"));
    }
    if (!first) shared.store(2 * round + 2, std::memory_order_release);
    trips.push_back(NowNs() - begin);
  }
  return trips;
}

Result<std::vector<int64_t>> BounceWrites(DomainGroup& group, const Bounce& bounce, Deadline deadline) {
  Bouncer bouncer(group, bounce, deadline);
  JF_RETURN_IF_ERROR(bouncer.Prepare());
  bouncer.Start();
  // The worker ends it, by the deadline of its expectation at the latest. Sleeping: the core is the worker's.
  while (!bouncer.ended() || !bouncer.idle()) std::this_thread::sleep_for(std::chrono::microseconds(200));
  JF_RETURN_IF_ERROR(bouncer.status());
  return bouncer.RoundTrips();
}

Result<SubmitTimes> MeasureSubmit(DomainGroup& group, PeerHandle peer, const RemoteMemory& target, uint32_t rounds,
                                  Deadline deadline) {
  SubmitTimes times;
  SingleWrite write;
  write.peer = peer;
  write.target = &target;
  std::atomic<int64_t> posted_ns{0};
  for (uint32_t i = 0; i < rounds; ++i) {
    posted_ns.store(0, std::memory_order_relaxed);  // handed on by the submission
    RequestOptions options;
    options.deadline = deadline;
    options.on_worker.context = &posted_ns;
    options.on_worker.function = [](void* context, const Error*) {
      static_cast<std::atomic<int64_t>*>(context)->store(NowNs(), std::memory_order_release);
    };
    const int64_t begin = NowNs();
    JF_ASSIGN_OR_RETURN(const Transfer transfer, group.Write(write, options));
    times.call_ns.push_back(NowNs() - begin);
    // Without a deadline of its own: the write has one, and the callback uses what is on this stack.
    while (posted_ns.load(std::memory_order_acquire) == 0) std::this_thread::yield();
    JF_RETURN_IF_ERROR(transfer.Wait(deadline));
    times.posted_ns.push_back(posted_ns.load(std::memory_order_relaxed) - begin);
  }
  return times;
}

}  // namespace jax_fabric::ffi_layer
