#include "csrc/engine/domains/local/shared_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "csrc/base/random_bytes.h"
#include "csrc/engine/domains/local/mailbox_layout.h"

namespace jax_fabric {
namespace local {
namespace {

// All SharedMemory of this process by first address. A process-wide table because a registration only brings a
// pointer. Never destroyed, so that exit handlers may still use it.
struct SharedMemoryTable {
  std::mutex mutex;
  std::map<uintptr_t, std::shared_ptr<const SharedMemoryFile>> files;

  static SharedMemoryTable& Get() {
    static auto* table = new SharedMemoryTable();
    return *table;
  }
};

}  // namespace

std::shared_ptr<const SharedMemoryFile> FindSharedMemory(const void* address, uint64_t length) {
  SharedMemoryTable& table = SharedMemoryTable::Get();
  const auto begin = reinterpret_cast<uintptr_t>(address);
  std::lock_guard lock(table.mutex);
  auto after = table.files.upper_bound(begin);
  if (after == table.files.begin()) return nullptr;
  const auto& file = std::prev(after)->second;
  const uint64_t offset = begin - reinterpret_cast<uintptr_t>(file->mapping.data());
  const uint64_t size = file->mapping.length();
  return offset < size && length <= size - offset ? file : nullptr;
}

}  // namespace local

Result<SharedMemory> AllocateShared(uint64_t length) {
  if (length > uint64_t{1} << 62) {
    return MakeError(ErrorCode::kInvalidArgument, "AllocateShared of {} bytes: more than a machine can have", length);
  }
  const uint64_t pages = std::max<uint64_t>(1, (length + local::kPage - 1) / local::kPage);
  auto file = std::make_shared<local::SharedMemoryFile>();
  JF_ASSIGN_OR_RETURN(file->id, RandomId());
  JF_ASSIGN_OR_RETURN(
      file->fd, local::CreateMemoryFile(fmt::format("jax_fabric-shared-{:016x}", file->id), pages * local::kPage));
  JF_ASSIGN_OR_RETURN(file->mapping, local::MemoryMapping::Map(file->fd.get()));

  local::SharedMemoryTable& table = local::SharedMemoryTable::Get();
  std::lock_guard lock(table.mutex);
  table.files[reinterpret_cast<uintptr_t>(file->mapping.data())] = file;
  return SharedMemory(std::move(file), length);
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    Forget();
    file_ = std::move(other.file_);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

SharedMemory::~SharedMemory() { Forget(); }

void SharedMemory::Forget() {
  if (!file_) return;
  {
    local::SharedMemoryTable& table = local::SharedMemoryTable::Get();
    std::lock_guard lock(table.mutex);
    table.files.erase(reinterpret_cast<uintptr_t>(file_->mapping.data()));
  }
  file_.reset();
}

}  // namespace jax_fabric
