#include "csrc/engine/domains/efa/message_buffers.h"

#include <utility>

namespace jax_fabric::efa {

MessageBuffers::~MessageBuffers() {
  for (const auto& chunk : chunks_) {
    memory_.Release(*chunk->held);
    static_cast<void>(memory_.Deregister(chunk->region));
  }
}

Result<MessageBuffer*> MessageBuffers::Take() {
  if (free_.empty()) JF_RETURN_IF_ERROR(Grow());
  MessageBuffer* buffer = free_.back();
  free_.pop_back();
  return buffer;
}

Status MessageBuffers::Grow() {
  auto chunk = std::make_unique<Chunk>();
  const size_t size = kBuffersPerChunk * bytes_;
  chunk->memory = std::make_unique<std::byte[]>(size);
  JF_ASSIGN_OR_RETURN(chunk->region,
                      memory_.Register(chunk->memory.get(), size, MemoryKind::kHost, Access::kLocalOnly));
  const char* why = nullptr;
  chunk->held = memory_.Hold(chunk->region.local_key, chunk->memory.get(), size, why);
  chunk->buffers.resize(kBuffersPerChunk);
  free_.reserve((chunks_.size() + 1) * kBuffersPerChunk);
  for (size_t i = 0; i < kBuffersPerChunk; ++i) {
    MessageBuffer& buffer = chunk->buffers[i];
    buffer.bytes = {chunk->memory.get() + i * bytes_, bytes_};
    buffer.descriptor = chunk->held->registration.descriptor;
    buffer.operation.buffer = &buffer;
    free_.push_back(&buffer);
  }
  chunks_.push_back(std::move(chunk));
  return {};
}

}  // namespace jax_fabric::efa
