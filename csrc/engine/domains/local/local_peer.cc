#include "csrc/engine/domains/local/local_peer.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "csrc/engine/domains/local/copy.h"
#include "csrc/engine/domains/local/region_table.h"

namespace jax_fabric::local {
namespace {

constexpr int64_t kMapTimeoutUs = 5'000'000;

}  // namespace

LocalPeer::LocalPeer(PeerId id, const LocalAddress& address)
    : id_(id),
      address_(address),
      label_(fmt::format("peer {} (process {}, domain {:016x})", id, address.process.pid, address.incarnation)) {}

std::string_view LocalPeer::path() const {
  if (state() != PeerState::kReady) return "not connected";
  if (same_process_) return "same process";
  return process_vm_ ? "shared memory and process_vm_writev" : "shared memory and bounce slots";
}

Status LocalPeer::ConnectWithin(std::shared_ptr<Mailbox> mailbox, const ProcessIdentity& self, uint64_t incarnation) {
  JF_ASSIGN_OR_RETURN(lane_, LaneWriter::Claim(mailbox, self, incarnation));
  std::lock_guard lock(mutex_);
  mailbox_ = std::move(mailbox);
  same_process_ = true;
  state_.store(PeerState::kReady, std::memory_order_release);
  return {};
}

void LocalPeer::StartConnect(const LocalDomainOptions& options) {
  DescriptorRequest request;
  request.kind = DescriptorRequest::kMailbox;
  request.incarnation = address_.incarnation;
  connect_.emplace(address_, request, options.key, Deadline::After(SteadyClock::Get(), options.connect_timeout_us));
}

std::optional<Status> LocalPeer::PollConnect(const LocalDomainOptions& options, const ProcessIdentity& self,
                                             uint64_t incarnation) {
  auto received = connect_->Poll();
  if (!received) return std::nullopt;
  connect_.reset();
  if (!received->has_value()) return tl::unexpected<Error>(received->error());
  return Attach(options, *std::move(*received), self, incarnation);
}

Status LocalPeer::Attach(const LocalDomainOptions& options, ReceivedDescriptors received, const ProcessIdentity& self,
                         uint64_t incarnation) {
  JF_ASSIGN_OR_RETURN(auto mailbox, Mailbox::Map(std::move(received.descriptors[0]), std::move(received.descriptors[1]),
                                                 address_.incarnation));
  if (options.use_pidfd) {
    pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(address_.process.pid), 0)));
  }
  // After pidfd_open: the descriptor is now known to be of the process that the address speaks of.
  if (!ProcessIsAlive(address_.process.pid, address_.process.start_time)) {
    return MakeError(ErrorCode::kUnavailable, "process {} ended while we connected to it", address_.process.pid);
  }
  JF_ASSIGN_OR_RETURN(lane_, LaneWriter::Claim(mailbox, self, incarnation));
  std::lock_guard lock(mutex_);
  mailbox_ = std::move(mailbox);
  memory_ = std::make_unique<RemoteMemory>(address_, *mailbox_, options.key);
  process_vm_ = options.use_process_vm && ProbeProcessVm();
  state_.store(PeerState::kReady, std::memory_order_release);
  return {};
}

void LocalPeer::Disconnect(PeerState state) {
  state_.store(state, std::memory_order_release);
  connect_.reset();
  lane_.reset();
  pidfd_.Close();
  if (state != PeerState::kRemoved) return;
  std::lock_guard lock(mutex_);
  memory_.reset();
  mailbox_.reset();
}

LocalPeer::Entered LocalPeer::Enter(uint64_t key, uint64_t address, uint64_t length, Error& error) {
  const uint32_t index = KeyIndex(key);
  if (key == 0 || index >= mailbox_->geometry().regions || !lane_->EnterRegion(index, key)) {
    if (lane_->refused()) {
      error = {ErrorCode::kUnavailable, fmt::format("{} is lost: {}", label_, kRefused)};
      return Entered::kRefused;
    }
    // A domain that goes says so before it takes its regions away: not the key was wrong.
    if (closed()) {
      error = {ErrorCode::kUnavailable, fmt::format("{} is lost: its domain was closed", label_)};
      return Entered::kRefused;
    }
    error = {ErrorCode::kPermissionDenied,
             fmt::format("remote key {:#x} is not (or no longer) registered at {}: use the key of its descriptor, and "
                         "deregister only after the last write",
                         key, label_)};
    return Entered::kRefused;
  }
  const RegionEntry& region = mailbox_->region(index);
  if (!CheckRange(region, address, length, error)) {
    Leave();
    return Entered::kRefused;
  }
  entered_begin_ = region.address.load(std::memory_order_relaxed);
  entered_length_ = region.length.load(std::memory_order_relaxed);
  entered_mapped_ = same_process_ || length == 0;
  entered_bounces_ = false;
  entered_shift_ = 0;
  if (entered_mapped_) return Entered::kYes;

  const uint64_t memory_id = region.memory_id.load(std::memory_order_relaxed);
  if (memory_id == 0) {
    entered_bounces_ = !process_vm_;
    return Entered::kYes;
  }
  const auto mapping = memory_->Find(memory_id, key);
  if (!mapping.has_value() || *mapping == nullptr) {
    Leave();
    if (mapping.has_value()) return Entered::kNotYet;
    error = mapping.error();
    return Entered::kRefused;
  }
  const uint64_t offset = region.memory_offset.load(std::memory_order_relaxed);
  const uint64_t region_length = region.length.load(std::memory_order_relaxed);
  if (offset > (*mapping)->length() || region_length > (*mapping)->length() - offset) {
    Leave();
    error = {ErrorCode::kDataLoss, fmt::format("{} says that a region lies where its memory has ended", label_)};
    return Entered::kRefused;
  }
  entered_mapped_ = true;
  entered_shift_ =
      reinterpret_cast<uint64_t>((*mapping)->data()) + offset - region.address.load(std::memory_order_relaxed);
  return Entered::kYes;
}

bool LocalPeer::CheckRange(const RegionEntry& region, uint64_t address, uint64_t length, Error& error) const {
  // Relaxed: the fields are constant while the key is valid, and the key was loaded before.
  if (region.remote_write.load(std::memory_order_relaxed) == 0) {
    error = {ErrorCode::kPermissionDenied,
             fmt::format("{} registered that region without Access::kRemoteWrite", label_)};
    return false;
  }
  const uint64_t begin = region.address.load(std::memory_order_relaxed);
  const uint64_t size = region.length.load(std::memory_order_relaxed);
  // Unsigned: an address below the region wraps to an offset beyond every size.
  const uint64_t offset = address - begin;
  if (offset <= size && length <= size - offset) return true;
  error = {ErrorCode::kOutOfRange, fmt::format("{} bytes at {:#x} are not inside the region of {} bytes at {:#x} of {}",
                                               length, address, size, begin, label_)};
  return false;
}

Status LocalPeer::Copy(uint64_t remote_address, const void* source, uint64_t length, bool streaming) {
  if (length == 0) return {};
  if (!entered_mapped_) return CopyByProcessVm(remote_address, source, length);
  CopyBytes(reinterpret_cast<std::byte*>(remote_address + entered_shift_), static_cast<const std::byte*>(source),
            length, streaming);
  return {};
}

Status LocalPeer::CopyPages(const PagesRequest& pages, uint32_t most, ByteView source, bool streaming,
                            uint32_t& copied) {
  const auto is_inside = [&](uint32_t page) {
    // Unsigned: an address below the region wraps to an offset beyond every size.
    const uint64_t from = reinterpret_cast<uint64_t>(pages.source) + pages.source_offsets[page * pages.step] -
                          reinterpret_cast<uint64_t>(source.data());
    const uint64_t to = pages.remote_address + pages.target_offsets[page * pages.step] - entered_begin_;
    return from <= source.size() && pages.length <= source.size() - from && to <= entered_length_ &&
           pages.length <= entered_length_ - to;
  };
  const auto base = reinterpret_cast<std::byte*>(pages.remote_address + entered_shift_);
  uint32_t count = 0;
  for (; count < most && is_inside(count); ++count) {
    if (!entered_mapped_) continue;
    std::byte* target = base + pages.target_offsets[count * pages.step];
    const std::byte* from = pages.source + pages.source_offsets[count * pages.step];
    if (streaming) {
      StreamBytes(target, from, pages.length);
    } else {
      std::memcpy(target, from, pages.length);
    }
  }
  if (streaming) FinishStreams();
  copied = count;
  return entered_mapped_ ? Status() : CopyPagesByProcessVm(pages, count);
}

bool LocalPeer::ProcessIsGone() const {
  if (!pidfd_.valid()) return !ProcessIsAlive(address_.process.pid, address_.process.start_time);
  pollfd polled = {pidfd_.get(), POLLIN, 0};
  return poll(&polled, 1, 0) > 0;
}

bool LocalPeer::ProbeProcessVm() const {
  uint64_t magic = 0;
  iovec here = {&magic, sizeof(magic)};
  iovec there = {reinterpret_cast<void*>(mailbox_->header().self_address), sizeof(magic)};
  // The kernel asks the same permission for reading and for writing.
  const auto pid = static_cast<pid_t>(address_.process.pid);
  return process_vm_readv(pid, &here, 1, &there, 1, 0) == sizeof(magic) && magic == kMailboxMagic;
}

Status LocalPeer::CopyByProcessVm(uint64_t remote_address, const void* source, uint64_t length) const {
  // The pid could have been given to another process; the descriptor knows.
  if (ProcessIsGone()) return MakeError(ErrorCode::kUnavailable, "{}: the process has ended", label_);
  for (uint64_t done = 0; done < length;) {
    iovec here = {static_cast<std::byte*>(const_cast<void*>(source)) + done, length - done};
    iovec there = {reinterpret_cast<void*>(remote_address + done), length - done};
    const ssize_t count = process_vm_writev(static_cast<pid_t>(address_.process.pid), &here, 1, &there, 1, 0);
    if (count <= 0) {
      const ErrorCode code = errno == ESRCH ? ErrorCode::kUnavailable : ErrorCode::kDataLoss;
      return MakeError(code, "process_vm_writev of {} bytes to {:#x} of {} failed: {}", length - done,
                       remote_address + done, label_, strerror(errno));
    }
    done += static_cast<uint64_t>(count);
  }
  return {};
}

Status LocalPeer::CopyPagesByProcessVm(const PagesRequest& pages, uint32_t count) const {
  constexpr uint32_t kAtOnce = 64;
  std::array<iovec, kAtOnce> here;
  std::array<iovec, kAtOnce> there;
  if (ProcessIsGone()) return MakeError(ErrorCode::kUnavailable, "{}: the process has ended", label_);
  for (uint32_t done = 0; done < count;) {
    const uint32_t pieces = std::min(kAtOnce, count - done);
    for (uint32_t i = 0; i < pieces; ++i) {
      const uint64_t at = (done + i) * pages.step;
      here[i] = {const_cast<std::byte*>(pages.source + pages.source_offsets[at]), pages.length};
      there[i] = {reinterpret_cast<void*>(pages.remote_address + pages.target_offsets[at]), pages.length};
    }
    const ssize_t bytes =
        process_vm_writev(static_cast<pid_t>(address_.process.pid), here.data(), pieces, there.data(), pieces, 0);
    const uint64_t whole = bytes < 0 ? 0 : static_cast<uint64_t>(bytes) / pages.length;
    done += static_cast<uint32_t>(whole);
    if (whole == pieces) continue;
    // The one that it stopped in: by itself, to finish it or to know why not.
    const uint64_t at = done * pages.step;
    JF_RETURN_IF_ERROR(CopyByProcessVm(pages.remote_address + pages.target_offsets[at],
                                       pages.source + pages.source_offsets[at], pages.length));
    ++done;
  }
  return {};
}

void* LocalPeer::Map(uint64_t key, uint64_t address, uint64_t length, Error& error) {
  std::lock_guard lock(mutex_);
  if (state() != PeerState::kReady || !mailbox_) {
    error = {ErrorCode::kFailedPrecondition, fmt::format("{} is not connected", label_)};
    return nullptr;
  }
  const uint32_t index = KeyIndex(key);
  // Acquire, with the release in RegionTable::Add: the fields are those of this key.
  if (key == 0 || index >= mailbox_->geometry().regions ||
      mailbox_->region(index).key.load(std::memory_order_acquire) != key) {
    error = {ErrorCode::kPermissionDenied, fmt::format("remote key {:#x} is not registered at {}", key, label_)};
    return nullptr;
  }
  const RegionEntry& region = mailbox_->region(index);
  if (!CheckRange(region, address, length, error)) return nullptr;
  if (same_process_) return reinterpret_cast<void*>(address);

  const uint64_t memory_id = region.memory_id.load(std::memory_order_relaxed);
  if (memory_id == 0) {
    error = {ErrorCode::kFailedPrecondition,
             fmt::format("the memory at {:#x} of {} was not allocated by AllocateShared", address, label_)};
    return nullptr;
  }
  const auto mapping = memory_->FindAndKeep(memory_id, key, Deadline::After(SteadyClock::Get(), kMapTimeoutUs));
  if (!mapping.has_value()) {
    error = mapping.error();
    return nullptr;
  }
  const uint64_t offset = region.memory_offset.load(std::memory_order_relaxed) + (address - region.address.load());
  if (offset > (*mapping)->length() || length > (*mapping)->length() - offset) return nullptr;
  return (*mapping)->data() + offset;
}

}  // namespace jax_fabric::local
