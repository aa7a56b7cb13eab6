#include "csrc/moe/context.h"

#include <atomic>
#include <thread>
#include <utility>

namespace jax_fabric::moe {

Result<std::unique_ptr<Context>> Context::Create(const MoeConfig& config, DomainGroup* group, Executor* executor) {
  JF_RETURN_IF_ERROR(config.Validate());
  std::unique_ptr<Context> context(new Context(config, group, executor));
  JF_RETURN_IF_ERROR(context->connector_.Prepare(
      {.memory_bytes = config.MemoryBytes(), .staging_bytes = config.channels * config.layout.ChannelBytes()}));
  return context;
}

Context::Context(const MoeConfig& config, DomainGroup* group, Executor* executor)
    : config_(config), group_(group), strand_(executor), connector_(config_, group) {}

Status Context::Connect(std::span<const Bytes> introductions, Deadline deadline) {
  JF_RETURN_IF_ERROR(connector_.Connect(introductions, deadline));
  std::vector<std::unique_ptr<Channel>> channels;
  for (int32_t index = 0; index < config_.channels; ++index) {
    JF_ASSIGN_OR_RETURN(auto channel, Channel::Create(index, config_, connector_.table(), group_, &strand_));
    channels.push_back(std::move(channel));
  }
  channels_ = std::move(channels);
  return {};
}

Channel* Context::channel(int32_t index) {
  if (index < 0 || index >= static_cast<int32_t>(channels_.size())) return nullptr;
  return channels_[index].get();
}

std::vector<int32_t> Context::LostRanks() const {
  return channels_.empty() ? std::vector<int32_t>() : connector_.LostRanks();
}

const Error* Context::error() const {
  for (const auto& channel : channels_) {
    if (const Error* error = channel->error(); error != nullptr) return error;
  }
  return nullptr;
}

bool Context::Close(Deadline deadline) {
  struct Sweep {
    Context* context = nullptr;
    Task task;
    const std::thread::id closer = std::this_thread::get_id();
    std::atomic<int> result{-1};
  };
  // Asked again and again, on the strand: cancelled expectations come back through the worker.
  while (true) {
    Sweep sweep;
    sweep.context = this;
    sweep.task.context = &sweep;
    sweep.task.run = [](void* context) {
      auto* self = static_cast<Sweep*>(context);
      bool quiet = true;
      for (const auto& channel : self->context->channels_) {
        channel->Close();
        quiet = quiet && channel->Quiet();
      }
      // Another thread that runs this has yet to leave the strand, which may be gone when Close has returned. Once the
      // closing thread runs it by itself, no other one does, nor will: all callbacks have come.
      quiet = quiet && std::this_thread::get_id() == self->closer;
      // release, with the acquire below.
      self->result.store(quiet ? 1 : 0, std::memory_order_release);
    };
    strand_.PostOrRun(&sweep.task);
    int result = -1;
    while ((result = sweep.result.load(std::memory_order_acquire)) < 0) std::this_thread::yield();
    // The thread that brought the last of them may still be about to leave.
    if (result == 1 && strand_.IsIdle()) return true;
    if (deadline.Passed(group_->clock())) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace jax_fabric::moe
