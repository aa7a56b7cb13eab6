#include "csrc/moe/cuda/gdrcopy/gdr_mapping.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace jax_fabric::gdrcopy {

Result<GdrMapping> GdrMapping::Map(const GdrLibrary& library, std::byte* memory, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  // The driver would map the pages around it, and say nothing of where in them it begins.
  if (address % kPageBytes != 0 || bytes <= 0 || bytes % kPageBytes != 0) {
    return MakeError(ErrorCode::kInvalidArgument, "memory {} of {} bytes is not made of pages of {} bytes",
                     static_cast<void*>(memory), bytes, kPageBytes);
  }
  GdrMapping mapping;
  int code = library.gdr_pin_buffer(library.driver, address, bytes, 0, 0, &mapping.handle_);
  if (code != 0) {
    return MakeError(ErrorCode::kUnavailable, "GDRCopy cannot pin {} bytes of a GPU: {}", bytes, std::strerror(code));
  }
  mapping.library_ = &library;  // from here on it has to be given back
  mapping.bytes_ = bytes;
  void* host = nullptr;
  code = library.gdr_map(library.driver, mapping.handle_, &host, bytes);
  if (code != 0) {
    return MakeError(ErrorCode::kUnavailable, "GDRCopy cannot map {} bytes of a GPU: {}", bytes, std::strerror(code));
  }
  mapping.host_ = static_cast<std::byte*>(host);
  return mapping;
}

GdrMapping::GdrMapping(GdrMapping&& other) noexcept { *this = std::move(other); }

GdrMapping& GdrMapping::operator=(GdrMapping&& other) noexcept {
  std::swap(library_, other.library_);
  std::swap(handle_, other.handle_);
  std::swap(host_, other.host_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

GdrMapping::~GdrMapping() {
  if (library_ == nullptr) return;
  if (host_ != nullptr) library_->gdr_unmap(library_->driver, handle_, host_, bytes_);
  library_->gdr_unpin_buffer(library_->driver, handle_);
}

}  // namespace jax_fabric::gdrcopy
