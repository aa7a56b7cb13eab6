// What the processes of a fabric share and nobody else knows. FabricKey is made from it and does all the proving.
#ifndef JAX_FABRIC_BASE_SECRET_H_
#define JAX_FABRIC_BASE_SECRET_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/status.h"

namespace jax_fabric {

// Its bytes are on the heap, are overwritten when it goes, and have no way into a log: nothing formats it.
class Secret {
 public:
  static constexpr size_t kMinBytes = 16;
  static constexpr size_t kMaxBytes = 1024;

  // kMinBytes to kMaxBytes that cannot be guessed.
  static Result<Secret> From(std::span<const std::byte> bytes);
  static Result<Secret> Generate();
  // All of the file but a newline at its end. Refuses a file that others than its owner and group can read, or others
  // than its owner can write.
  static Result<Secret> FromFile(const std::string& path);

  Secret(Secret&& other) noexcept = default;
  Secret& operator=(Secret&& other) noexcept;
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit Secret(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  void Wipe();

  std::vector<std::byte> bytes_;
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_SECRET_H_
