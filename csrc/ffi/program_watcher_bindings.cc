#include "csrc/ffi/program_watcher_bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "csrc/ffi/gpu_platform.h"
#include "csrc/ffi/host/host_engine.h"
#include "csrc/ffi/host/host_watcher.h"
#include "csrc/ffi/python_errors.h"
#include "csrc/ffi/watcher_table.h"
#include "csrc/kernels/signals.h"

namespace nb = nanobind;

namespace jax_fabric::ffi_layer {
namespace {

// Polled by the engine's watcher thread and not by a worker, which kernels wait for: callbacks wait for the GIL.
std::unique_ptr<HostWatcher> WatchPrograms(std::shared_ptr<HostEngine> engine, uint64_t initial,
                                           const nb::object& callback, uint64_t native_function,
                                           uint64_t native_context, int64_t handle, int32_t ordinal,
                                           std::optional<int> cuda_device) {
  // Memory of its own: the table keeps that for ever, and must not keep the callback.
  const auto line = std::make_shared<kernels::WatcherWord>();
  std::shared_ptr<uint64_t> word(line, &line->value);
  if (cuda_device) word = ValueOrRaise(AllocateGpuWord(*cuda_device));
  auto watcher = ValueOrRaise(HostWatcher::Watch(std::move(engine), initial, callback,
                                                 NativeFunction::At(native_function, native_context), word));
  RaiseIfError(WatcherTable::Get().Add(handle, ordinal, std::move(word)));
  return watcher;
}

}  // namespace

void RegisterProgramWatcherBindings(nb::module_& m) {
  m.def("watch_programs", &WatchPrograms, nb::arg("engine"), nb::arg("initial"), nb::arg("callback"),
        nb::arg("native_function"), nb::arg("native_context"), nb::arg("handle"), nb::arg("ordinal"),
        nb::arg("cuda_device").none());
}

}  // namespace jax_fabric::ffi_layer
