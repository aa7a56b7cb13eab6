#include "csrc/moe/testing/delivery_guard.h"

#include <fmt/format.h>

#include <cstring>

#include "csrc/moe/announcement_ring.h"
#include "csrc/moe/notice_board.h"

namespace jax_fabric::moe::testing {
namespace {

// No message begins with it, and as floats it is NaN.
constexpr int kPoison = 0xff;

uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace

void DeliveryGuard::Watch(const MoeConfig& config, std::byte* memory) {
  for (int32_t channel = 0; channel < config.channels; ++channel) {
    for (int32_t source = 0; source < config.layout.shape.ranks; ++source) {
      for (const int parity : {0, 1}) {
        std::byte* const slot = memory + config.ChannelOffset(channel) + config.layout.SlotOffset(source, parity);
        std::memset(slot, kPoison, config.layout.SlotBytes());
        windows_[AddressOf(slot)] = {.end = AddressOf(slot) + config.layout.SlotBytes(), .once = true, .landed = {}};
      }
    }
    for (int64_t entry = 0; entry < AnnouncementRing::kEntries; ++entry) {
      const uint64_t begin = AddressOf(memory + config.RingOffset(channel) + AnnouncementRing::EntryOffset(entry));
      windows_[begin] = {.end = begin + AnnouncementRing::kEntryBytes, .once = false, .landed = {}};
    }
  }
}

void DeliveryGuard::WatchNotices(const MoeConfig& config, std::byte* memory) {
  const uint64_t end = AddressOf(memory) + NoticeBoard::MemoryBytes(config);
  for (uint64_t begin = AddressOf(memory); begin < end; begin += FailureNotice::kBytes) {
    windows_[begin] = {.end = begin + FailureNotice::kBytes, .once = true, .landed = {}};
  }
}

void DeliveryGuard::Landed(uint64_t address, uint64_t end) {
  landed_bytes_ += end - address;
  auto after = windows_.upper_bound(address);
  if (after == windows_.begin()) return Violate("outside of all slots", address, end);
  Window& window = std::prev(after)->second;
  if (end > window.end) return Violate("past the end of a slot", address, end);
  if (!window.once) return;
  for (const auto& [other, other_end] : window.landed) {
    if (address < other_end && other < end) return Violate("on top of a message that nobody has read", address, end);
  }
  window.landed.emplace_back(address, end);
}

void DeliveryGuard::HaveRead(const void* const* slots, int32_t ranks) {
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const auto window = windows_.find(AddressOf(slots[rank]));
    if (window == windows_.end()) continue;  // of a fabric that is not watched
    window->second.landed.clear();
    std::memset(const_cast<void*>(slots[rank]), kPoison, window->second.end - window->first);
  }
}

void DeliveryGuard::Violate(const std::string& what, uint64_t address, uint64_t end) {
  if (violation_.empty()) violation_ = fmt::format("{} bytes landed {} (at {:#x})", end - address, what, address);
}

}  // namespace jax_fabric::moe::testing
