// The command protocol between the suite and a node with a driver of its own, over a socket pair. Both ends are the
// same program on the same machine, so plain structs travel as they are.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_NODE_PROTOCOL_H_
#define JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_NODE_PROTOCOL_H_

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/domain.h"

namespace jax_fabric::conformance {

enum class Command : uint32_t {
  kAddress,
  kLimits,
  kAddPeer,
  kState,
  kRemovePeer,
  kLastError,
  kAllocate,
  kRegister,
  kDeregister,
  kPostWrites,
  kPostSends,
  kPostReceives,
  kPoll,
  kFill,
  kFillByte,
  kCheck,
  kCheckByte,
  kMapRemote,
  kQuit,
};

// A command with its arguments, or its answer.
class Parcel {
 public:
  Parcel() = default;
  explicit Parcel(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}

  template <typename T>
  Parcel& Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return Add(&value, sizeof(T));
  }
  template <typename T>
  Parcel& PutAll(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    Put(static_cast<uint64_t>(values.size()));
    return Add(values.data(), values.size_bytes());
  }
  Parcel& Append(const Parcel& other) { return Add(other.bytes_.data(), other.bytes_.size()); }
  Parcel& PutText(const std::string& text) { return PutAll(std::span<const char>(text)); }
  template <typename T>
  Parcel& PutResult(const Result<T>& result) {
    Put(result.has_value());
    if (result.has_value()) {
      if constexpr (!std::is_void_v<T>) Put(*result);
    } else {
      Put(result.error().code).PutText(result.error().message);
    }
    return *this;
  }

  template <typename T>
  T Get() {
    T value{};
    Take(&value, sizeof(T));
    return value;
  }
  template <typename T>
  std::vector<T> GetAll() {
    std::vector<T> values(Get<uint64_t>());
    Take(values.data(), values.size() * sizeof(T));
    return values;
  }
  std::string GetText() {
    const auto text = GetAll<char>();
    return std::string(text.begin(), text.end());
  }
  template <typename T>
  Result<T> GetResult() {
    if (Get<bool>()) {
      if constexpr (std::is_void_v<T>) {
        return {};
      } else {
        return Get<T>();
      }
    }
    const auto code = Get<ErrorCode>();
    return tl::unexpected<Error>(Error{code, GetText()});
  }

  // Blocking. False: the other side is gone.
  bool Send(int socket) const;
  static Result<Parcel> Receive(int socket);

 private:
  Parcel& Add(const void* source, size_t count) {
    const size_t at = bytes_.size();
    bytes_.resize(at + count);
    if (count > 0) std::memcpy(bytes_.data() + at, source, count);
    return *this;
  }
  void Take(void* target, size_t count) {
    if (count > 0) std::memcpy(target, bytes_.data() + at_, count);
    at_ += count;
  }

  std::vector<std::byte> bytes_;
  size_t at_ = 0;
};

}  // namespace jax_fabric::conformance

#endif  // JAX_FABRIC_ENGINE_DOMAINS_CONFORMANCE_NODE_PROTOCOL_H_
