// A file descriptor that is closed with its owner.
#ifndef JAX_FABRIC_BASE_UNIQUE_FD_H_
#define JAX_FABRIC_BASE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace jax_fabric {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_UNIQUE_FD_H_
