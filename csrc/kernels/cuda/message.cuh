// Access to the parts of a message in its slot (layout: moe_layout.h), and to routes, on the device.
#ifndef JAX_FABRIC_KERNELS_CUDA_MESSAGE_CUH_
#define JAX_FABRIC_KERNELS_CUDA_MESSAGE_CUH_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "csrc/kernels/cuda/moe_kernels.h"
#include "csrc/kernels/moe_kernels.h"
#include "csrc/kernels/moe_layout.h"
#include "csrc/kernels/rounds.h"
#include "csrc/kernels/signals.h"

namespace jax_fabric::kernels::cuda {

template <typename T>
__device__ __forceinline__ T* At(void* base, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(base) + offset);
}
template <typename T>
__device__ __forceinline__ const T* At(const void* base, int64_t offset) {
  return reinterpret_cast<const T*>(static_cast<const char*>(base) + offset);
}

__device__ __forceinline__ const MessageHeader& HeaderOf(const void* slot) { return *At<MessageHeader>(slot, 0); }

// A copy of it, read at once: checks of one field after the other would each wait for a load.
__device__ __forceinline__ MessageHeader LoadHeader(const void* slot) {
  constexpr int kWords = sizeof(MessageHeader) / sizeof(uint64_t);
  uint64_t words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; i += 2) {
    asm volatile("ld.v2.u64 {%0, %1}, [%2];"
                 : "=l"(words[i]), "=l"(words[i + 1])
                 : "l"(static_cast<const uint64_t*>(slot) + i)
                 : "memory");
  }
  MessageHeader header;
  memcpy(&header, words, sizeof(header));
  return header;
}

// A value from an array that went through the program (a route), made safe to use as an index: -1 unless in [0, bound).
__device__ __forceinline__ int64_t IndexBelow(int32_t value, int64_t bound) {
  return static_cast<uint32_t>(value) < static_cast<uint64_t>(bound) ? value : -1;
}

// Zeroes bytes [begin, end), which are multiples of 4, by threads [0, threads).
__device__ __forceinline__ void ZeroWords(void* base, int64_t begin, int64_t end, int thread, int threads) {
#pragma unroll 1
  for (int64_t at = begin + 4 * thread; at < end; at += 4 * threads) *At<uint32_t>(base, at) = 0;
}

// Zeroes bytes [begin, end), whatever their alignment; 16 at once where it lets.
__device__ __forceinline__ void ZeroBytes(void* base, int64_t begin, int64_t end, int64_t thread, int64_t threads) {
  const auto address = reinterpret_cast<uintptr_t>(base);
  int64_t from = AlignUp(static_cast<int64_t>(address) + begin, 16) - static_cast<int64_t>(address);
  if (from > end) from = end;
  const int64_t words = (end - from) / 16;
#pragma unroll 1
  for (int64_t i = begin + thread; i < from; i += threads) *At<char>(base, i) = 0;
#pragma unroll 1
  for (int64_t i = thread; i < words; i += threads) *At<uint4>(base, from + 16 * i) = uint4{0, 0, 0, 0};
#pragma unroll 1
  for (int64_t i = from + 16 * words + thread; i < end; i += threads) *At<char>(base, i) = 0;
}

// ---- Launches of a channel, whose exchanges are numbered on the device (LaunchOptions::channel) --------------------

// What kernels look at in the state of their channel: all of it at once. What they do not look at is not there.
// kEarly: by a kernel that does not wait for the one before it first: past the first cache, where nothing tells whether
// what is there is old. Others not, since thousands of warps would wait for the same line.
template <bool kEarly>
__device__ __forceinline__ ChannelState LoadState(const ChannelState* state) {
  constexpr int kWords = 8;
  static_assert(offsetof(ChannelState, epoch) + sizeof(ChannelEpoch) == kWords * sizeof(uint64_t));
  uint64_t words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; i += 2) {
    const auto* pair = reinterpret_cast<const uint64_t*>(state) + i;
    // volatile: not one after the other, as they are needed.
    if constexpr (kEarly) {
      asm volatile("ld.cg.v2.u64 {%0, %1}, [%2];" : "=l"(words[i]), "=l"(words[i + 1]) : "l"(pair) : "memory");
    } else {
      asm volatile("ld.v2.u64 {%0, %1}, [%2];" : "=l"(words[i]), "=l"(words[i + 1]) : "l"(pair) : "memory");
    }
  }
  ChannelState loaded;
  loaded.issued = static_cast<int64_t>(words[0]);
  loaded.finished = static_cast<int64_t>(words[1]);
  loaded.error = static_cast<SignalError>(words[2] & 0xffffffff);
  loaded.refused = static_cast<uint32_t>(words[2] >> 32);
  loaded.epoch.incarnation = words[3];
  loaded.epoch.membership_epoch = static_cast<uint32_t>(words[4]);
  loaded.epoch.absent = reinterpret_cast<const uint8_t*>(words[5]);
  loaded.epoch.first_slot = reinterpret_cast<const void*>(words[6]);
  loaded.epoch.flags = reinterpret_cast<const int64_t*>(words[7]);
  return loaded;
}
__device__ __forceinline__ ChannelState StateOf(const KernelRun& run) {
  return run.channel == nullptr ? ChannelState{} : LoadState<false>(run.channel);
}

// Nothing is to be done any more. The same for all threads of a launch.
__device__ __forceinline__ bool HasFailed(const ChannelState& channel) { return channel.error != SignalError::kNone; }
// The same of kernels whose call has had an exchange kernel: there is nothing to receive, and nothing more to send.
__device__ __forceinline__ bool HasNothing(const ChannelState& channel) {
  return HasFailed(channel) || channel.refused != 0;
}
// Of the exchange that a send kernel packs.
__device__ __forceinline__ void* const* SendSlots(const KernelRun& run, const ChannelState& channel, void* const* slots,
                                                  int32_t ranks) {
  return run.channel == nullptr ? slots : slots + ((channel.issued + 1) & 1) * ranks;
}
__device__ __forceinline__ MessageStamp StampOf(const KernelRun& run, const ChannelState& channel, MessageStamp stamp) {
  if (run.channel == nullptr) return stamp;
  stamp.sequence = channel.issued + 1;
  stamp.incarnation = channel.epoch.incarnation;
  stamp.membership_epoch = channel.epoch.membership_epoch;
  return stamp;
}

// The slots of this rank.
struct ReceiveSlots {
  const void* const* table;
  const void* first;  // or null, see LaunchOptions
  int64_t slot_bytes;

  // Those of the exchange that a receive kernel unpacks.
  __device__ __forceinline__ void Choose(const KernelRun& run, const ChannelState& channel, int64_t ranks) {
    if (run.channel == nullptr) return;
    first = channel.epoch.first_slot;
    if ((channel.issued & 1) == 0) return;
    if (table != nullptr) table += ranks;
    if (first != nullptr) first = At<char>(first, ranks * slot_bytes);
  }

  __device__ __forceinline__ const void* operator[](int64_t source) const {
    return first != nullptr ? At<char>(first, source * slot_bytes) : table[source];
  }
};

struct MessageContent {
  int64_t rows = 0;
  int64_t first_row = 0;
  int64_t expert_rows = 0;
  int64_t rounds = 0;
  int64_t payload_offset = 0;
};

// By one thread.
__device__ __forceinline__ void WriteHeader(const MessageStamp& stamp, ExchangeKind kind, const MessageContent& content,
                                            void* slot) {
  MessageHeader header;
  header.magic = kMessageMagic;
  header.version = kMessageVersion;
  header.kind = static_cast<uint16_t>(kind);
  header.incarnation = stamp.incarnation;
  header.signature = stamp.signature;
  header.sequence = stamp.sequence;
  header.channel = stamp.channel;
  header.membership_epoch = stamp.membership_epoch;
  header.rows = static_cast<uint32_t>(content.rows);
  header.expert_rows = static_cast<uint32_t>(content.expert_rows);
  header.payload_offset = static_cast<uint64_t>(content.payload_offset);
  header.first_row = static_cast<uint32_t>(content.first_row);
  header.rounds = static_cast<uint32_t>(content.rounds);
  *At<MessageHeader>(slot, 0) = header;
}

}  // namespace jax_fabric::kernels::cuda

#endif  // JAX_FABRIC_KERNELS_CUDA_MESSAGE_CUH_
