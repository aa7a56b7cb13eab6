#include "csrc/ffi/local_engine.h"

#include <unistd.h>

#include <algorithm>

#include "csrc/base/affinity.h"
#include "csrc/ffi/context_table.h"
#include "csrc/ffi/environment.h"
#include "csrc/moe/context.h"

namespace jax_fabric::ffi_layer {

Result<std::unique_ptr<LocalEngine>> LocalEngine::Create(int worker_threads, std::shared_ptr<const FabricKey> key) {
  JF_ASSIGN_OR_RETURN(EngineOptions options, EngineOptionsFromEnvironment());
  options.key = std::move(key);
  if (worker_threads > 0) options.workers = static_cast<uint32_t>(worker_threads);
  JF_ASSIGN_OR_RETURN(std::unique_ptr<TransferEngine> engine, TransferEngine::Create(options));
  std::unique_ptr<LocalEngine> local(new LocalEngine());
  local->engine_ = std::move(engine);
  return local;
}

LocalEngine::~LocalEngine() { Close(1'000'000); }

Result<size_t> LocalEngine::AddGroup(const std::string& name, DomainChoice choice, std::optional<GpuOptions> gpu,
                                     const std::vector<int>& cpus) {
  JF_ASSIGN_OR_RETURN(const auto pinned, ScopedAffinity::Pin(cpus));
  Device device;
  device.through_nic = choice.kind != DomainKind::kLocal;
  choice.device_memory = gpu && device.through_nic && !gpu->force_staged;
  if (gpu && gpu->node && !choice.device_memory) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "node='{}': only GPUs that NICs write to are reached in more than one way; leave it out {}",
                     *gpu->node, device.through_nic ? "with force_staged=True" : "with domain=\"local\"");
  }
  device.gpu = std::move(gpu);
  GroupOptions options;
  options.name = name;
  auto domains = CreateDomains(choice, name, engine_->key());
  if (!domains && choice.device_memory) {
    return MakeError(
        domains.error().code,
        "{}. A transport was asked for that reaches memory of GPUs: force_staged=True goes through host memory "
        "instead",
        domains.error().message);
  }
  JF_ASSIGN_OR_RETURN(options.domains, std::move(domains));
  JF_ASSIGN_OR_RETURN(device.group, engine_->AddGroup(std::move(options)));
  JF_ASSIGN_OR_RETURN(device.kernels, SerialExecutor::Start("jf_kernels"));
  JF_ASSIGN_OR_RETURN(device.completions, SerialExecutor::Start("jf_completion"));
  devices_.push_back(std::move(device));
  return devices_.size() - 1;
}

Result<std::unique_ptr<moe::RankContext>> LocalEngine::MakeContext(const Device& device, const moe::MoeConfig& config,
                                                                   const moe::RankContext* predecessor) {
  if (!device.gpu) return moe::Context::Create(config, device.group, device.kernels.get());
  return CreateGpuContext(config, device.group, *device.gpu, device.through_nic, predecessor);
}

Result<moe::RankContext*> LocalEngine::AddMoeContext(size_t device, const moe::MoeConfig& config, int64_t handle,
                                                     int32_t ordinal) {
  if (closed_) return MakeError(ErrorCode::kFailedPrecondition, "the fabric was closed");
  Executor* const completions = devices_[device].completions.get();
  const moe::RankContext* predecessor = ContextTable::Get().Predecessor(handle, ordinal, completions);
  JF_ASSIGN_OR_RETURN(std::unique_ptr<moe::RankContext> context, MakeContext(devices_[device], config, predecessor));
  JF_RETURN_IF_ERROR(ContextTable::Get().Add(handle, ordinal, context.get(), completions));
  contexts_.push_back(std::move(context));
  handles_.push_back(handle);
  return contexts_.back().get();
}

Status LocalEngine::CloseMoeContexts(int64_t handle, int64_t timeout_us) {
  const Deadline deadline = Deadline::After(SteadyClock::Get(), timeout_us);
  ContextTable::Get().Close(handle);
  // All of them before the first is destroyed: they store into each other's memory.
  for (size_t i = 0; i < contexts_.size(); ++i) {
    if (handles_[i] != handle || contexts_[i]->Close(deadline)) continue;
    return MakeError(ErrorCode::kDeadlineExceeded,
                     "expert-parallel context {} is still in use {} s after it was closed: close the fabric", handle,
                     timeout_us / 1e6);
  }
  for (size_t i = contexts_.size(); i-- > 0;) {
    if (handles_[i] != handle) continue;
    if (contexts_[i]->Retire()) (void)contexts_[i].release();
    contexts_.erase(contexts_.begin() + static_cast<int64_t>(i));
    handles_.erase(handles_.begin() + static_cast<int64_t>(i));
  }
  return {};
}

const Error* LocalEngine::FirstError() const {
  for (const auto& context : contexts_) {
    if (const Error* error = context->error(); error != nullptr) return error;
  }
  return nullptr;
}

std::optional<Error> LocalEngine::TakeRefusal() {
  for (const auto& context : contexts_) {
    if (std::optional<Error> refusal = context->TakeRefusal()) return refusal;
  }
  return {};
}

bool LocalEngine::Close(int64_t timeout_us) {
  if (closed_) return true;
  closed_ = true;
  if (getpid() != process_) {
    // A forked child. The threads are the parent's, and so are the peers: there is nothing to end, and nobody to wait
    // for.
    Abandon();
    return true;
  }
  const Deadline deadline = Deadline::After(SteadyClock::Get(), timeout_us);
  for (const int64_t handle : handles_) ContextTable::Get().Close(handle);
  for (const auto& context : contexts_) context->Close(deadline);
  bool quiet = engine_->Close(deadline).has_value();
  for (const auto& context : contexts_) quiet = context->Close(deadline) && quiet;
  for (Device& device : devices_) {
    const int64_t left_us = std::max<int64_t>(0, (deadline.at_ns - SteadyClock::Get().NowNs()) / 1000);
    quiet = device.kernels->Stop(left_us).has_value() && quiet;
    quiet = device.completions->Stop(left_us).has_value() && quiet;
  }
  // Something still runs in there (a user's program that a completion started, say): leaking is the only safe end.
  if (!quiet) Abandon();
  for (auto& context : contexts_) {
    if (context != nullptr && context->Retire()) (void)context.release();
  }
  contexts_.clear();
  engine_.reset();
  return quiet;
}

void LocalEngine::Abandon() {
  for (auto& context : contexts_) (void)context.release();
  for (Device& device : devices_) {
    (void)device.kernels.release();
    (void)device.completions.release();
  }
  (void)engine_.release();
}

}  // namespace jax_fabric::ffi_layer
