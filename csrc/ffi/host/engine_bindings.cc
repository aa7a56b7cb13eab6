// TransferEngine, Watcher, Pending and memory.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/engine/descriptor.h"
#include "csrc/engine/domains/local/shared_memory.h"
#include "csrc/ffi/environment.h"
#include "csrc/ffi/host/bindings.h"
#include "csrc/ffi/host/host_engine.h"
#include "csrc/ffi/host/host_region.h"
#include "csrc/ffi/host/host_watcher.h"
#include "csrc/ffi/host/pending.h"
#include "csrc/ffi/python_errors.h"
#include "csrc/ffi/secret_bindings.h"

namespace nb = nanobind;

namespace jax_fabric::ffi_layer {
namespace {

// The word of a watcher as something that NumPy can look at; keeps it alive.
struct WatcherWord {
  std::shared_ptr<uint64_t> word;
};

nb::dict ArrayInterface(const void* address, uint64_t count, const char* type) {
  nb::dict interface;
  interface["shape"] = nb::make_tuple(count);
  interface["typestr"] = nb::str(type);
  interface["data"] = nb::make_tuple(reinterpret_cast<uint64_t>(address), false);
  interface["version"] = 3;
  return interface;
}

nb::bytes ToPython(const Bytes& bytes) { return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size()); }

RemoteMemory ParseRemoteMemory(const nb::bytes& bytes) {
  return ValueOrRaise(ParseDescriptor(ByteView(static_cast<const std::byte*>(bytes.data()), bytes.size())));
}

WriteGrant ParseWriteGrant(const nb::bytes& bytes) {
  return ValueOrRaise(WriteGrant::Parse(ByteView(static_cast<const std::byte*>(bytes.data()), bytes.size())));
}

void CloseEngine(HostEngine& self, int64_t timeout_us) {
  Status status;
  {
    const nb::gil_scoped_release released;
    status = self.Close(timeout_us);
  }
  RaiseIfError(status);
}

void CloseEngines(int64_t timeout_us) {
  bool all_closed = false;
  {
    const nb::gil_scoped_release released;
    all_closed = HostEngine::CloseAll(timeout_us);
  }
  // What was left behind on purpose is no mistake of the bindings.
  if (!all_closed) nb::set_leak_warnings(false);
}

void CloseRegion(HostRegionHandle& self) { RaiseIfError(self.Close()); }

nb::bytes Describe(const HostRegionHandle& self) {
  const HostRegion& region = *self.region();
  RaiseIfError(region.group().engine->CheckProcess());
  return ToPython(ValueOrRaise(region.group().group->Describe(region.memory())));
}

void RegisterMemoryBindings(nb::module_& m) {
  nb::class_<WriteGrant>(m, "WriteGrant")
      .def_static("from_bytes", &ParseWriteGrant, nb::arg("grant"))
      .def("to_bytes", [](const WriteGrant& self) { return ToPython(self.Serialize()); })
      .def_ro("id", &WriteGrant::id)
      .def_ro("immediate", &WriteGrant::immediate);

  nb::class_<RemoteMemory>(m, "RemoteMemory")
      .def_static("from_bytes", &ParseRemoteMemory, nb::arg("descriptor"))
      .def("to_bytes", [](const RemoteMemory& self) { return ToPython(SerializeDescriptor(self)); })
      .def_ro("nbytes", &RemoteMemory::length)
      .def_prop_ro("nic_count", [](const RemoteMemory& self) { return self.nics.size(); });

  nb::class_<HostRegionHandle>(m, "Region")
      .def("describe", &Describe)
      .def_prop_ro(
          "address",
          [](const HostRegionHandle& self) { return reinterpret_cast<uint64_t>(self.region()->memory().address); })
      .def_prop_ro("nbytes", [](const HostRegionHandle& self) { return self.region()->memory().length; })
      .def_prop_ro("registered", [](const HostRegionHandle& self) { return self.region()->registered(); })
      .def("close", &CloseRegion);

  nb::class_<SharedMemory>(m, "SharedMemory")
      .def(nb::new_(
               [](uint64_t nbytes) { return std::make_unique<SharedMemory>(ValueOrRaise(AllocateShared(nbytes))); }),
           nb::arg("nbytes"))
      .def_prop_ro("__array_interface__",
                   [](const SharedMemory& self) { return ArrayInterface(self.data(), self.size(), "|u1"); });
}

void RegisterPending(nb::module_& m) {
  nb::class_<Pending>(m, "Pending")
      .def("done", &Pending::done)
      .def("drained", &Pending::drained)
      .def(
          "wait",
          [](const Pending& self, int64_t timeout_us) {
            return self.done() ||
                   WaitInterruptibly(timeout_us, self.clock(), [&](Deadline slice) { return self.WaitDone(slice); });
          },
          nb::arg("timeout_us"))
      .def(
          "wait_drained",
          [](const Pending& self, int64_t timeout_us) {
            return self.drained() ||
                   WaitInterruptibly(timeout_us, self.clock(), [&](Deadline slice) { return self.WaitDrained(slice); });
          },
          nb::arg("timeout_us"))
      .def("error",
           [](const Pending& self) {
             return self.done() && !self.result().has_value() ? ToException(self.result().error()) : nb::none();
           })
      .def("cancel", &Pending::Cancel)
      .def("add_done_callback", &Pending::AddDoneCallback, nb::arg("function"), nb::arg("argument"));
}

void RegisterWatcher(nb::module_& m) {
  nb::class_<WatcherWord>(m, "WatcherWord").def_prop_ro("__array_interface__", [](const WatcherWord& self) {
    return ArrayInterface(self.word.get(), 1, "<u8");
  });

  nb::class_<HostWatcher>(m, "Watcher")
      .def_prop_ro("word", [](const HostWatcher& self) { return WatcherWord{self.word()}; })
      // Release, partner: the acquire in Watcher::Word::Poll.
      .def(
          "store",
          [](HostWatcher& self, uint64_t value) {
            std::atomic_ref(*self.word()).store(value, std::memory_order_release);
          },
          nb::arg("value"))
      // Acquire, for words that somebody else releases.
      .def("load",
           [](const HostWatcher& self) { return std::atomic_ref(*self.word()).load(std::memory_order_acquire); })
      .def("stop", &HostWatcher::Stop)
      .def(
          "wait_until_returned",
          [](const HostWatcher& self, int64_t timeout_us) {
            return WaitInterruptibly(timeout_us, SteadyClock::Get(),
                                     [&](Deadline slice) { return self.WaitUntilReturned(slice); });
          },
          nb::arg("timeout_us"));
}

}  // namespace

void RegisterHostBindings(nb::module_& m) {
  RegisterMemoryBindings(m);
  RegisterPending(m);
  RegisterWatcher(m);
  RegisterGroupBindings(m);
  RegisterBenchmarkBindings(m);
  RegisterSimulationBindings(m);

  nb::class_<HostEngine>(m, "TransferEngine")
      .def(nb::new_([](int worker_threads, const PythonSecret* secret) {
             return ValueOrRaise(HostEngine::Create(worker_threads, KeyOf(secret)));
           }),
           nb::arg("worker_threads"), nb::arg("secret").none())
      .def(
          "add_group",
          [](std::shared_ptr<HostEngine> self, const std::string& name, const std::optional<std::string>& domain,
             const std::optional<std::string>& provider, const std::vector<std::string>& nics,
             const std::vector<int>& cpus) {
            const DomainChoice choice = ValueOrRaise(DomainChoiceFromEnvironment(domain, provider, nics));
            DomainGroup* group = ValueOrRaise(self->AddGroup(name, choice, cpus));
            return HostGroup{std::move(self), group};
          },
          nb::arg("name"), nb::arg("domain").none(), nb::arg("provider").none(), nb::arg("nics"), nb::arg("cpus"))
      .def(
          "watch",
          [](std::shared_ptr<HostEngine> self, uint64_t initial, const nb::object& callback, uint64_t native_function,
             uint64_t native_context) {
            return ValueOrRaise(HostWatcher::Watch(std::move(self), initial, callback,
                                                   NativeFunction::At(native_function, native_context)));
          },
          nb::arg("initial"), nb::arg("callback"), nb::arg("native_function"), nb::arg("native_context"))
      .def("close", &CloseEngine, nb::arg("timeout_us"));

  m.def("close_engines", &CloseEngines, nb::arg("timeout_us"));
  m.def(
      "transport",
      [](const std::optional<std::string>& domain, const std::optional<std::string>& provider) {
        const DomainChoice choice = ValueOrRaise(DomainChoiceFromEnvironment(domain, provider, {}));
        const NicSelection nics = ValueOrRaise(NicSelectionFromEnvironment());
        return nb::make_tuple(choice.domain_name(), choice.provider, choice.library, nb::cast(nics.groups),
                              nb::cast(nics.exclude));
      },
      nb::arg("domain").none(), nb::arg("provider").none());
}

}  // namespace jax_fabric::ffi_layer
