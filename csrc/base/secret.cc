#include "csrc/base/secret.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "csrc/base/random_bytes.h"
#include "csrc/base/unique_fd.h"

namespace jax_fabric {
namespace {

constexpr size_t kGeneratedBytes = 32;

Status CheckFile(int fd, const std::string& path) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) {
    return MakeError(ErrorCode::kInvalidArgument, "secret file '{}': {}", path, strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    return MakeError(ErrorCode::kInvalidArgument, "secret file '{}' is not a regular file", path);
  }
  if ((status.st_mode & (S_IWGRP | S_IRWXO)) != 0) {
    return MakeError(ErrorCode::kPermissionDenied,
                     "secret file '{}' has mode {:04o}: only its owner may write it, and nobody outside of its group "
                     "may read it: chmod 600",
                     path, status.st_mode & 07777u);
  }
  return {};
}

}  // namespace

Result<Secret> Secret::From(std::span<const std::byte> bytes) {
  if (bytes.size() < kMinBytes || bytes.size() > kMaxBytes) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "a secret of {} bytes: it must have {} to {} (32 random ones are right: head -c 32 /dev/urandom)",
                     bytes.size(), kMinBytes, kMaxBytes);
  }
  return Secret(std::vector<std::byte>(bytes.begin(), bytes.end()));
}

Result<Secret> Secret::Generate() {
  Secret secret{std::vector<std::byte>(kGeneratedBytes)};
  JF_RETURN_IF_ERROR(FillRandom(secret.bytes_));
  return secret;
}

Result<Secret> Secret::FromFile(const std::string& path) {
  // Not blocking: it might be a pipe.
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    return MakeError(ErrorCode::kInvalidArgument, "secret file '{}' cannot be opened: {}", path, strerror(errno));
  }
  JF_RETURN_IF_ERROR(CheckFile(file.get(), path));
  Secret secret{std::vector<std::byte>(kMaxBytes + 3)};  // with "\r\n", and one more to see that it is too long
  size_t size = 0;
  while (size < secret.bytes_.size()) {
    const ssize_t count = read(file.get(), secret.bytes_.data() + size, secret.bytes_.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return MakeError(ErrorCode::kInvalidArgument, "secret file '{}' cannot be read: {}", path, strerror(errno));
    }
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  std::span<const std::byte> content = std::span(secret.bytes_).first(size);
  for (const char end : {'\n', '\r'}) {
    if (!content.empty() && content.back() == static_cast<std::byte>(end)) content = content.first(content.size() - 1);
  }
  Result<Secret> result = From(content);
  if (!result.has_value()) {
    return MakeError(ErrorCode::kInvalidArgument, "secret file '{}': {}", path, result.error().message);
  }
  return result;
}

Secret& Secret::operator=(Secret&& other) noexcept {
  if (this != &other) {
    Wipe();
    bytes_ = std::move(other.bytes_);
  }
  return *this;
}

Secret::~Secret() { Wipe(); }

void Secret::Wipe() {
  if (!bytes_.empty()) sodium_memzero(bytes_.data(), bytes_.size());
}

}  // namespace jax_fabric
