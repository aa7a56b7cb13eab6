// What jax_fabric.bench measures with.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "csrc/ffi/host/bindings.h"
#include "csrc/ffi/host/host_region.h"
#include "csrc/ffi/host/transfer_benchmarks.h"
#include "csrc/ffi/python_errors.h"

namespace nb = nanobind;

namespace jax_fabric::ffi_layer {
namespace {

using Nanoseconds = std::vector<int64_t>;

template <typename Measure>
auto WithoutGil(Measure measure) {
  const nb::gil_scoped_release released;
  return measure();
}

Nanoseconds CallBounceWord(const HostRegionHandle& region, bool first, uint32_t rounds, int64_t timeout_us) {
  auto* word = static_cast<uint64_t*>(region.region()->memory().address);
  return ValueOrRaise(WithoutGil([&] { return BounceWord(word, first, rounds, AfterTimeout(timeout_us)); }));
}

Nanoseconds CallBounceWrites(const HostGroup& group, PeerHandle peer, const HostRegionHandle& source,
                             const RemoteMemory& target, uint64_t nbytes, uint32_t incoming, uint32_t outgoing,
                             bool first, uint32_t rounds, int64_t timeout_us) {
  const Bounce bounce{peer, source.region()->memory(), &target, nbytes, incoming, outgoing, first, rounds};
  return ValueOrRaise(WithoutGil([&] { return BounceWrites(*group.group, bounce, AfterTimeout(timeout_us)); }));
}

std::pair<Nanoseconds, Nanoseconds> CallMeasureSubmit(const HostGroup& group, PeerHandle peer,
                                                      const RemoteMemory& target, uint32_t rounds, int64_t timeout_us) {
  SubmitTimes times = ValueOrRaise(
      WithoutGil([&] { return MeasureSubmit(*group.group, peer, target, rounds, AfterTimeout(timeout_us)); }));
  return {std::move(times.call_ns), std::move(times.posted_ns)};
}

}  // namespace

void RegisterBenchmarkBindings(nb::module_& m) {
  m.def("bounce_word", &CallBounceWord, nb::arg("region"), nb::arg("first"), nb::arg("rounds"), nb::arg("timeout_us"));
  m.def("bounce_writes", &CallBounceWrites, nb::arg("group"), nb::arg("peer"), nb::arg("source"), nb::arg("target"),
        nb::arg("nbytes"), nb::arg("incoming"), nb::arg("outgoing"), nb::arg("first"), nb::arg("rounds"),
        nb::arg("timeout_us"));
  m.def("measure_submit", &CallMeasureSubmit, nb::arg("group"), nb::arg("peer"), nb::arg("target"), nb::arg("rounds"),
        nb::arg("timeout_us"));
}

}  // namespace jax_fabric::ffi_layer
