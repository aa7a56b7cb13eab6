#include "csrc/ffi/host/host_engine.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "csrc/base/affinity.h"
#include "csrc/base/log.h"
#include "csrc/ffi/environment.h"
#include "csrc/ffi/host/fork_generation.h"

namespace jax_fabric::ffi_layer {
namespace {

constexpr int64_t kRetireTimeoutUs = 5'000'000;

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<HostEngine>> engines;
  std::atomic<int> retiring{0};  // engines that a thread of their own is closing

  // Never destroyed: such a thread may be last.
  static Registry& Get() {
    static Registry* const registry = [] {
      // So that a child does not find the lock held by a thread that it does not have.
      pthread_atfork([] { Get().mutex.lock(); }, [] { Get().mutex.unlock(); }, [] { Get().mutex.unlock(); });
      return new Registry;
    }();
    return *registry;
  }
};

int64_t MicrosecondsLeft(Deadline deadline) {
  return std::max<int64_t>(0, (deadline.at_ns - SteadyClock::Get().NowNs()) / 1000);
}

}  // namespace

struct HostEngineDeleter {
  void operator()(HostEngine* engine) const { HostEngine::Retire(engine); }
};

HostEngine::HostEngine(const EngineOptions& options, std::shared_ptr<const void> owner)
    : fork_generation_(ForkGeneration()),
      owner_(std::move(owner)),
      thread_(std::this_thread::get_id()),
      hub_(*options.clock, options.pump) {}

Result<std::shared_ptr<HostEngine>> HostEngine::Create(int worker_threads, std::shared_ptr<const FabricKey> key) {
  JF_ASSIGN_OR_RETURN(EngineOptions options, EngineOptionsFromEnvironment());
  options.key = std::move(key);
  if (worker_threads > 0) options.workers = static_cast<uint32_t>(worker_threads);
  return CreateWith(std::move(options), nullptr);
}

Result<std::shared_ptr<HostEngine>> HostEngine::CreateWith(EngineOptions options, std::shared_ptr<const void> owner) {
  Registry& registry = Registry::Get();
  std::shared_ptr<HostEngine> self(new HostEngine(options, std::move(owner)), HostEngineDeleter());
  JF_ASSIGN_OR_RETURN(self->engine_, TransferEngine::Create(std::move(options)));
  std::lock_guard lock(registry.mutex);
  std::erase_if(registry.engines, [](const auto& other) { return other.expired(); });
  registry.engines.push_back(self);
  return self;
}

Result<DomainGroup*> HostEngine::AddGroup(const std::string& name, const DomainChoice& choice,
                                          const std::vector<int>& cpus) {
  JF_RETURN_IF_ERROR(CheckProcess());
  JF_ASSIGN_OR_RETURN(const auto pinned, ScopedAffinity::Pin(cpus));
  GroupOptions options;
  options.name = name;
  JF_ASSIGN_OR_RETURN(options.domains, CreateDomains(choice, name, engine_->key()));
  return engine_->AddGroup(std::move(options));
}

bool HostEngine::InForkedChild() const { return ForkGeneration() != fork_generation_; }

Status HostEngine::CheckProcess() const {
  if (owner_ != nullptr && thread_ != std::this_thread::get_id()) {
    return MakeError(ErrorCode::kFailedPrecondition,
                     "a simulated fabric and its groups belong to the thread that made them");
  }
  if (!InForkedChild()) return {};
  return MakeError(ErrorCode::kFailedPrecondition,
                   "this engine belongs to the process that forked this one: make a new one here, or start processes "
                   "by spawning");
}

void HostEngine::ClearAtClose(const std::shared_ptr<PythonCallback>& callback) {
  std::lock_guard lock(mutex_);
  std::erase_if(callbacks_, [](const auto& other) { return other.expired(); });
  callbacks_.push_back(callback);
}

Status HostEngine::Close(int64_t timeout_us) {
  if (InForkedChild()) return {};
  if (engine_ == nullptr) return {};  // it was never made
  JF_RETURN_IF_ERROR(engine_->Close(Deadline::After(clock(), timeout_us)));
  closed_.store(true, std::memory_order_release);
  std::vector<std::weak_ptr<PythonCallback>> callbacks;
  {
    std::lock_guard lock(mutex_);
    callbacks.swap(callbacks_);
  }
  for (const auto& each : callbacks) {
    if (const auto callback = each.lock()) callback->Clear();
  }
  return {};
}

void HostEngine::Leak() { static_cast<void>(engine_.release()); }

void HostEngine::Retire(HostEngine* self) {
  if (self->InForkedChild()) return;
  if (self->closed_.load(std::memory_order_acquire)) {
    delete self;
    return;
  }
  if (self->owner_ != nullptr) {
    // There are no threads to wait for.
    static_cast<void>(self->Close(kRetireTimeoutUs));
    delete self;
    return;
  }
  // Nobody has closed it. Closing waits for the engine's threads, one of which may be this one, and for callbacks,
  // which want the GIL, which this thread may hold.
  Registry::Get().retiring.fetch_add(1, std::memory_order_seq_cst);
  std::thread([self] {
    if (const Status closed = self->Close(kRetireTimeoutUs); !closed.has_value()) {
      Log(LogLevel::kError, "engine: {}", closed.error().message);
      self->Leak();  // something still runs in there
    }
    delete self;
    Registry::Get().retiring.fetch_sub(1, std::memory_order_seq_cst);
  }).detach();
}

bool HostEngine::CloseAll(int64_t timeout_us) {
  const Deadline deadline = Deadline::After(SteadyClock::Get(), timeout_us);
  Registry& registry = Registry::Get();
  std::vector<std::weak_ptr<HostEngine>> engines;
  {
    std::lock_guard lock(registry.mutex);
    engines = registry.engines;
  }
  bool all_closed = true;
  for (const auto& each : engines) {
    const std::shared_ptr<HostEngine> engine = each.lock();
    if (engine == nullptr) continue;
    all_closed &= !engine->InForkedChild();
    if (const Status closed = engine->Close(MicrosecondsLeft(deadline)); !closed.has_value()) {
      Log(LogLevel::kWarning, "engine: at exit: {}", closed.error().message);
      all_closed = false;
      // A callback that does not return must not keep the program from ending.
      static_cast<void>(new std::shared_ptr<HostEngine>(engine));
    }
  }
  while (registry.retiring.load(std::memory_order_seq_cst) > 0 && all_closed && !deadline.Passed(SteadyClock::Get())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return PythonScope::Shut(deadline) && all_closed;
}

}  // namespace jax_fabric::ffi_layer
