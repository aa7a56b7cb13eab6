#include "csrc/moe/cuda/gdrcopy/gdr_library.h"

#include <dlfcn.h>

#include <memory>
#include <type_traits>

#include "csrc/base/load_once.h"

namespace jax_fabric::gdrcopy {
namespace {

constexpr const char* kSystemLibrary = "libgdrapi.so.2";

Result<std::unique_ptr<GdrLibrary>> Open(const std::string& library) {
  const std::string name = library.empty() ? kSystemLibrary : library;
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return MakeError(ErrorCode::kNotFound, "GDRCopy cannot be opened ({})", reason == nullptr ? name : reason);
  }
  auto loaded = std::make_unique<GdrLibrary>();
  void* (*open)() = nullptr;
  const char* missing = nullptr;
  const auto find = [handle, &missing](const char* symbol, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, symbol));
    if (function == nullptr) missing = symbol;
  };
  find("gdr_open", open);
  find("gdr_pin_buffer", loaded->gdr_pin_buffer);
  find("gdr_unpin_buffer", loaded->gdr_unpin_buffer);
  find("gdr_map", loaded->gdr_map);
  find("gdr_unmap", loaded->gdr_unmap);
  if (missing != nullptr) {
    dlclose(handle);
    return MakeError(ErrorCode::kUnimplemented, "{} has no {}: install GDRCopy 2.0 or newer", name, missing);
  }
  loaded->driver = open();
  if (loaded->driver != nullptr) return loaded;
  dlclose(handle);
  return MakeError(ErrorCode::kFailedPrecondition,
                   "GDRCopy's driver cannot be opened: is the kernel module gdrdrv loaded, and /dev/gdrdrv writable?");
}

}  // namespace

Result<const GdrLibrary*> GdrLibrary::Load(const std::string& library) { return LoadOnce(library, Open); }

}  // namespace jax_fabric::gdrcopy
