#include "csrc/engine/message_pool.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "csrc/engine/group_driver.h"

namespace jax_fabric {
namespace {

constexpr uint64_t kAlignment = 64;

}  // namespace

MessagePool::MessagePool(Executor& executor, std::unique_ptr<MessageAuthenticator> authenticator, uint32_t send_slots,
                         uint64_t max_send_bytes, uint64_t max_packet_bytes)
    : executor_(executor),
      authenticator_(std::move(authenticator)),
      send_slots_(std::clamp(send_slots, 1u, IndexStack::kCapacity)),
      max_packet_bytes_(std::min(max_packet_bytes, std::min(max_packet_bytes, max_send_bytes) + trailer_bytes())) {}

MessagePool::~MessagePool() = default;

Result<MessagePool::Slab> MessagePool::MakeSlab(Domain& domain, uint32_t count, uint64_t bytes) {
  Slab slab;
  slab.stride = (std::max<uint64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  const uint64_t size = slab.stride * count;
  slab.memory = std::make_unique<std::byte[]>(size + kAlignment);
  const uint64_t address = reinterpret_cast<uint64_t>(slab.memory.get());
  slab.first = slab.memory.get() + (kAlignment - address % kAlignment) % kAlignment;
  JF_ASSIGN_OR_RETURN(slab.region, domain.RegisterMemory(slab.first, size, MemoryKind::kHost, Access::kLocalOnly));
  return slab;
}

Status MessagePool::MakeSendSlots(GroupDriver& driver) {
  std::lock_guard lock(mutex_);
  if (has_send_slots_.load(std::memory_order_relaxed)) return {};
  JF_ASSIGN_OR_RETURN(send_slab_, MakeSlab(*driver.domains()[0], send_slots_, max_packet_bytes_));
  driver_ = &driver;
  free_.Reserve(send_slots_);
  for (uint32_t i = 0; i < send_slots_; ++i) free_.Push(i);
  has_send_slots_.store(true, std::memory_order_release);
  return {};
}

Result<MessagePool::Slot> MessagePool::TakeSlot(GroupDriver& driver, const RequestOptions& options) {
  if (!has_send_slots_.load(std::memory_order_acquire)) JF_RETURN_IF_ERROR(MakeSendSlots(driver));
  std::optional<uint32_t> index = free_.Pop();
  if (!index.has_value() && options.wait_for_room && !Waker::OnWorker()) {
    driver.hub().Wait(options.deadline, [&] { return (index = free_.Pop()).has_value(); });
  }
  if (!index.has_value()) {
    return MakeError(ErrorCode::kResourceExhausted,
                     "group '{}': send: {} messages are under way and none was sent before the deadline; raise "
                     "GroupOptions::send_slots, or slow down",
                     driver.name(), send_slots_);
  }
  return Slot{send_slab_.first + *index * send_slab_.stride, send_slab_.region.local_key, *index};
}

uint64_t MessagePool::max_send_bytes(const Peer& peer) const {
  const uint64_t packet_bytes = std::min(max_packet_bytes_, peer.address.max_message_bytes);
  return packet_bytes - std::min(packet_bytes, trailer_bytes());
}

uint64_t MessagePool::Pack(const Slot& slot, ByteView message, Peer& peer) {
  std::copy(message.begin(), message.end(), slot.data);
  const uint64_t packet_bytes = message.size() + trailer_bytes();
  if (authenticator_ != nullptr) {
    // Relaxed: the numbers have to differ, and nothing else.
    const uint64_t sequence = peer.next_message.fetch_add(1, std::memory_order_relaxed);
    authenticator_->Seal({slot.data, packet_bytes}, peer.address.incarnation, sequence);
  }
  return packet_bytes;
}

void MessagePool::ReturnSlot(uint32_t index) {
  free_.Push(index);
  driver_->hub().Notify();
}

Status MessagePool::StartReceives(GroupDriver& driver, ReceiveOptions options) {
  Domain& domain = *driver.domains()[0];
  std::lock_guard lock(mutex_);
  if (buffers_ != nullptr) {
    return MakeError(ErrorCode::kAlreadyExists, "group '{}': messages are being received already", driver.name());
  }
  const uint64_t limit =
      domain.limits().max_message_bytes - std::min(domain.limits().max_message_bytes, trailer_bytes());
  if (!options.on_message || options.buffers == 0 || options.max_bytes > limit ||
      options.buffers > domain.limits().max_receives) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "group '{}': receive: {} buffers of {} bytes{}; {} takes 1 to {} buffers of at most {} bytes",
                     driver.name(), options.buffers, options.max_bytes, options.on_message ? "" : " without on_message",
                     domain.name(), domain.limits().max_receives, limit);
  }
  JF_ASSIGN_OR_RETURN(receive_slab_, MakeSlab(domain, options.buffers, options.max_bytes + trailer_bytes()));
  receive_ = std::move(options);
  buffers_ = std::make_unique<Buffer[]>(receive_.buffers);
  for (uint32_t i = 0; i < receive_.buffers; ++i) {
    Buffer& buffer = buffers_[i];
    buffer.pool = this;
    buffer.driver = &driver;
    buffer.data = receive_slab_.first + i * receive_slab_.stride;
    buffer.deliver.context = &buffer;
    buffer.deliver.run = [](void* context) {
      auto* self = static_cast<Buffer*>(context);
      self->pool->receive_.on_message(self->peer, ByteView(self->data, self->length));
      self->driver->Submit(self);
    };
    driver.Submit(&buffer);
  }
  receiving_.store(true, std::memory_order_release);
  return {};
}

void MessagePool::Buffer::Start(GroupDriver& group) {
  if (!group.accepting()) return;
  group.SetReceiveHandler(pool);
  Domain& domain = *group.domains()[0];
  const PostResult result =
      domain.PostReceive(ReceiveRequest{reinterpret_cast<uint64_t>(this), data, pool->receive_slab_.region.local_key,
                                        pool->receive_.max_bytes + pool->trailer_bytes()});
  if (result == PostResult::kAgain) group.Submit(this);
}

void MessagePool::OnReceive(const Completion& completion, const Peer* peer) {
  Buffer& buffer = *reinterpret_cast<Buffer*>(completion.context);
  if (completion.code != ErrorCode::kOk) {
    // The buffer came back empty: the domain closes, or a peer broke off. Posting it again is all there is to do.
    return buffer.driver->Submit(&buffer);
  }
  const uint64_t packet_bytes = std::min(completion.length, receive_.max_bytes + trailer_bytes());
  if (!IsGenuine({buffer.data, packet_bytes}, peer)) return buffer.driver->Submit(&buffer);
  const ByteView message(buffer.data, packet_bytes - trailer_bytes());
  if (filter_ != nullptr && filter_->Take(peer, message)) return buffer.driver->Submit(&buffer);
  buffer.peer = peer == nullptr ? Completion::kUnknownPeer : peer->handle;
  buffer.length = message.size();
  executor_.Submit(&buffer.deliver);
}

bool MessagePool::IsGenuine(std::span<std::byte> packet, const Peer* peer) {
  if (authenticator_ == nullptr) return true;
  using Verdict = MessageAuthenticator::Verdict;
  const Verdict verdict = authenticator_->Open(packet, peer == nullptr ? 0 : peer->address.incarnation);
  if (verdict == Verdict::kForged) forged_.fetch_add(1, std::memory_order_relaxed);
  if (verdict == Verdict::kReplayed) replayed_.fetch_add(1, std::memory_order_relaxed);
  return verdict == Verdict::kGenuine;
}

}  // namespace jax_fabric
