// GDRCopy (https://github.com/NVIDIA/gdrcopy), opened at run time: with its kernel module, the host can map memory of a
// GPU and store into it.
#ifndef JAX_FABRIC_MOE_CUDA_GDRCOPY_GDR_LIBRARY_H_
#define JAX_FABRIC_MOE_CUDA_GDRCOPY_GDR_LIBRARY_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "csrc/base/status.h"

namespace jax_fabric::gdrcopy {

// What gdrapi.h of version 2 declares, in our own words: its header is not needed to build.
struct Handle {
  unsigned long value = 0;
};

struct GdrLibrary {
  // Opened once in a process, and never closed. `library`: a file name or path; empty: the system's. kNotFound: it is
  // not installed. kFailedPrecondition: its kernel module is not loaded, or may not be used by this process.
  static Result<const GdrLibrary*> Load(const std::string& library);

  void* driver = nullptr;  // what gdr_open returned
  int (*gdr_pin_buffer)(void*, unsigned long, size_t, uint64_t, uint32_t, Handle*) = nullptr;
  int (*gdr_unpin_buffer)(void*, Handle) = nullptr;
  int (*gdr_map)(void*, Handle, void**, size_t) = nullptr;
  int (*gdr_unmap)(void*, Handle, void*, size_t) = nullptr;
};

}  // namespace jax_fabric::gdrcopy

#endif  // JAX_FABRIC_MOE_CUDA_GDRCOPY_GDR_LIBRARY_H_
