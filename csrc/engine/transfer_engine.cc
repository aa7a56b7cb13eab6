#include "csrc/engine/transfer_engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/base/random_bytes.h"
#include "csrc/engine/group_driver.h"
#include "csrc/engine/idle_backoff.h"

namespace jax_fabric {
namespace {

constexpr int64_t kDestructorTimeoutUs = 5'000'000;
// A thread that has nothing to do stops within this, even when the deadline has been used up by something else.
constexpr int64_t kLeastStopUs = 100'000;
// How long after a word has changed its next change is waited for without a pause, where nobody else wants the core.
constexpr int64_t kWatchYieldUs = 1'000'000;

uint32_t MaxWorkers(const EngineOptions& options) {
  return options.workers != 0 ? options.workers : std::max(1u, std::thread::hardware_concurrency() / 2);
}

Status CheckGroup(const GroupOptions& options) {
  if (options.domains.empty() || options.domains.size() > kMaxNics) {
    return MakeError(ErrorCode::kInvalidArgument, "add group '{}': {} domains; a group has 1 to {}", options.name,
                     options.domains.size(), kMaxNics);
  }
  for (const auto& domain : options.domains) {
    if (domain == nullptr || domain->kind() != options.domains[0]->kind() || domain->limits().max_write_bytes == 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "add group '{}': its domains must exist, be of one kind, and take writes of at least 1 byte",
                       options.name);
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<TransferEngine>> TransferEngine::Create(EngineOptions options) {
  std::unique_ptr<TransferEngine> engine(new TransferEngine(std::move(options)));
  if (engine->options_.callback_executor != nullptr) {
    engine->callbacks_ = engine->options_.callback_executor;
  } else if (engine->options_.threads) {
    JF_ASSIGN_OR_RETURN(engine->callback_thread_, SerialExecutor::Start("jf-callbacks"));
    engine->callbacks_ = engine->callback_thread_.get();
  }
  return engine;
}

TransferEngine::TransferEngine(EngineOptions options)
    : options_(std::move(options)),
      hub_(
          *options_.clock, options_.threads ? std::function<void()>()
                           : options_.pump  ? options_.pump
                                            : [this] { Step(); }) {
  watch_task_.context = this;
  watch_task_.run = [](void* context) { static_cast<TransferEngine*>(context)->WatchLoop(); };
}

TransferEngine::~TransferEngine() {
  const Status closed = Close(Deadline::After(clock(), kDestructorTimeoutUs));
  if (closed.has_value()) return;
  Log(LogLevel::kError, "engine: {}", closed.error().message);
  if (closed_) return;
  // A thread of ours is stuck in a callback and will use these when it returns.
  for (auto& group : groups_) static_cast<void>(group.release());
  for (auto& worker : workers_) static_cast<void>(worker.release());
  for (auto& thread : worker_threads_) static_cast<void>(thread.release());
}

Result<Worker*> TransferEngine::WorkerForNextGroup() {
  if (workers_.size() >= MaxWorkers(options_)) return workers_[groups_.size() % workers_.size()].get();
  const size_t index = workers_.size();
  auto worker = std::make_unique<Worker>(clock(), options_.idle);
  if (options_.threads) {
    JF_ASSIGN_OR_RETURN(auto thread, WorkerThread::Start(*worker, clock(), fmt::format("jf-worker-{}", index)));
    worker_threads_.push_back(std::move(thread));
  }
  workers_.push_back(std::move(worker));
  return workers_.back().get();
}

Result<DomainGroup*> TransferEngine::AddGroup(GroupOptions options) {
  JF_RETURN_IF_ERROR(CheckGroup(options));
  JF_ASSIGN_OR_RETURN(const uint64_t incarnation, RandomId());
  std::lock_guard lock(mutex_);
  if (closing_) return MakeError(ErrorCode::kCancelled, "add group '{}': the engine is closed", options.name);
  JF_ASSIGN_OR_RETURN(Worker * worker, WorkerForNextGroup());
  groups_.emplace_back(
      new DomainGroup(std::move(options), options_.key, incarnation, clock(), worker->waker(), hub_, *callbacks_));
  worker->Add(&groups_.back()->driver());
  return groups_.back().get();
}

Result<std::unique_ptr<Watcher>> TransferEngine::Watch(uint64_t initial, Watcher::Callback callback,
                                                       std::shared_ptr<uint64_t> given) {
  std::lock_guard lock(mutex_);
  if (closing_) return MakeError(ErrorCode::kCancelled, "watch: the engine is closed");
  if (options_.threads && watcher_thread_ == nullptr) {
    JF_ASSIGN_OR_RETURN(watcher_thread_, SerialExecutor::Start("jf-watcher", /*spin_us=*/0));
    watcher_thread_->Submit(&watch_task_);
  }
  return Watcher::Watch(watchers_, initial, std::move(callback), std::move(given));
}

void TransferEngine::WatchLoop() {
  IdleBackoff backoff(clock(), options_.idle);
  int64_t busy_ns = clock().NowNs();
  while (!stop_watching_.load(std::memory_order_acquire)) {
    if (watchers_.Poll()) {
      busy_ns = clock().NowNs();
      continue;
    }
    // Programs raise words again and again, with milliseconds in between.
    const int64_t yield_us = backoff.core_is_wanted() ? backoff.yield_us() : kWatchYieldUs;
    if (backoff.Wait(busy_ns, yield_us)) continue;
    // Nothing wakes a reader of memory: this is how late it may be.
    std::this_thread::sleep_for(std::chrono::microseconds(watchers_.size() == 0 ? 1000 : 50));
  }
}

bool TransferEngine::Step() {
  bool busy = false;
  for (const auto& worker : workers_) busy |= worker->Step();
  busy |= watchers_.Poll();
  return busy;
}

int64_t TransferEngine::MicrosecondsLeft(Deadline deadline) const {
  return std::max(kLeastStopUs, (deadline.at_ns - clock().NowNs()) / 1000);
}

Status TransferEngine::CheckNotOnOwnThread() const {
  const bool own = Waker::OnWorker() || (callback_thread_ != nullptr && callback_thread_->OnThisExecutor()) ||
                   (watcher_thread_ != nullptr && watcher_thread_->OnThisExecutor());
  if (!own) return {};
  return MakeError(ErrorCode::kFailedPrecondition, "an engine cannot be closed by one of its own callbacks");
}

Status TransferEngine::StopThreads(Deadline deadline) {
  for (auto& thread : worker_threads_) JF_RETURN_IF_ERROR(thread->Stop(MicrosecondsLeft(deadline)));
  // Ends what the workers have left; its callbacks may still use the callback thread.
  for (auto& group : groups_) group->driver().Detach();
  stop_watching_.store(true, std::memory_order_release);
  if (watcher_thread_ != nullptr) JF_RETURN_IF_ERROR(watcher_thread_->Stop(MicrosecondsLeft(deadline)));
  if (callback_thread_ != nullptr) JF_RETURN_IF_ERROR(callback_thread_->Stop(MicrosecondsLeft(deadline)));
  return {};
}

Status TransferEngine::Close(Deadline deadline) {
  JF_RETURN_IF_ERROR(CheckNotOnOwnThread());
  std::lock_guard close_lock(close_mutex_);
  if (closed_) return {};
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  for (auto& group : groups_) group->driver().RequestClose(deadline);
  const bool quiescent = hub_.Wait(deadline, [this] {
    return std::all_of(groups_.begin(), groups_.end(), [](auto& group) { return group->driver().quiescent(); });
  });
  JF_RETURN_IF_ERROR(StopThreads(deadline));
  closed_ = true;
  if (quiescent) return {};
  std::string names;
  for (auto& group : groups_) {
    if (!group->driver().quiescent()) names += fmt::format(" '{}'", group->name());
  }
  return MakeError(ErrorCode::kDeadlineExceeded,
                   "close: writes were still in flight at the deadline in{}; they end when the NICs are closed", names);
}

}  // namespace jax_fabric
