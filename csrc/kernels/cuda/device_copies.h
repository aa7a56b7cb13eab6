// For tests: arrays in host memory, for the time of one kernel in device memory.
#ifndef JAX_FABRIC_KERNELS_CUDA_DEVICE_COPIES_H_
#define JAX_FABRIC_KERNELS_CUDA_DEVICE_COPIES_H_

#include <cstdint>
#include <vector>

namespace jax_fabric::kernels::testing {

// Every array has guards around it, which nothing may change, as nothing may change what is added as const.
class DeviceCopies {
 public:
  DeviceCopies();

  // Where the array will be on the device; null if it is null here.
  template <typename T>
  T* Add(T* array, int64_t count) {
    return static_cast<T*>(AddBytes(array, count * static_cast<int64_t>(sizeof(T)), false));
  }
  template <typename T>
  const T* Add(const T* array, int64_t count) {
    return static_cast<const T*>(AddBytes(const_cast<T*>(array), count * static_cast<int64_t>(sizeof(T)), true));
  }
  void* AddBytes(void* array, int64_t bytes, bool constant);
  const void* AddBytes(const void* array, int64_t bytes) { return AddBytes(const_cast<void*>(array), bytes, true); }
  // Memory that only the device has.
  void* Scratch(int64_t bytes);

  // After all arrays are added, before the kernel.
  void Upload();
  // After the kernel: waits for it, checks, and copies what is not const back.
  void Download();

 private:
  struct Copy {
    uint8_t* host;
    int64_t bytes;
    int64_t offset;
    bool constant;
  };
  int64_t Reserve(int64_t bytes);

  std::vector<Copy> copies_;
  std::vector<uint8_t> image_;
  int64_t bytes_ = 0;
};

}  // namespace jax_fabric::kernels::testing

#endif  // JAX_FABRIC_KERNELS_CUDA_DEVICE_COPIES_H_
