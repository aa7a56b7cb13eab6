// What jax_fabric.testing.SimulatedFabric is made of.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cmath>

#include "csrc/ffi/host/bindings.h"
#include "csrc/ffi/host/host_simulation.h"
#include "csrc/ffi/python_errors.h"

namespace nb = nanobind;

namespace jax_fabric::ffi_layer {
namespace {

int64_t ToNanoseconds(double seconds) { return std::llround(seconds * 1e9); }

std::shared_ptr<HostSimulation> MakeSimulation(uint64_t seed, double latency_s, double reorder_s, double bytes_per_s,
                                               uint64_t segment_nbytes, double loss, double retransmit_s, int retries,
                                               double again, double early_completion, double handshake_loss,
                                               double lease_s) {
  simulated::SimulatedDomainOptions nic;
  nic.limits.max_outstanding = 256;
  nic.limits.max_receives = 256;
  nic.limits.max_message_bytes = 8192;
  nic.nic.latency_ns = ToNanoseconds(latency_s);
  nic.nic.handshake_ns = ToNanoseconds(latency_s);
  nic.nic.jitter_ns = ToNanoseconds(reorder_s);
  nic.nic.completion_ns = ToNanoseconds(reorder_s);
  nic.nic.bytes_per_ns = bytes_per_s * 1e-9;
  nic.nic.segment_bytes = segment_nbytes;
  nic.faults.loss_probability = loss;
  nic.faults.retransmit_ns = ToNanoseconds(retransmit_s);
  nic.faults.retries = retries;
  nic.faults.again_probability = again;
  nic.faults.again_burst = 5;
  nic.faults.early_completion_probability = early_completion;
  nic.faults.handshake_loss_probability = handshake_loss;
  nic.faults.lease_ns = ToNanoseconds(lease_s);
  return std::make_shared<HostSimulation>(seed, nic);
}

void StepOnce(HostSimulation& self) {
  RaiseIfError(self.CheckThread());
  const nb::gil_scoped_release released;
  self.Step();
}

void RunFor(HostSimulation& self, int64_t timeout_us) {
  RaiseIfError(self.CheckThread());
  WaitInterruptibly(timeout_us, self.clock(), [&](Deadline slice) {
    while (!slice.Passed(self.clock())) self.Step();
    return false;
  });
}

void Kill(HostSimulation& self, size_t group) {
  Status status;
  {
    const nb::gil_scoped_release released;
    status = self.Kill(group);
  }
  RaiseIfError(status);
}

}  // namespace

void RegisterSimulationBindings(nb::module_& m) {
  nb::class_<HostSimulation>(m, "Simulation")
      .def(nb::new_(&MakeSimulation), nb::kw_only(), nb::arg("seed"), nb::arg("latency_s"), nb::arg("reorder_s"),
           nb::arg("bytes_per_s"), nb::arg("segment_nbytes"), nb::arg("loss"), nb::arg("retransmit_s"),
           nb::arg("retries"), nb::arg("again"), nb::arg("early_completion"), nb::arg("handshake_loss"),
           nb::arg("lease_s"))
      .def(
          "add_group",
          [](HostSimulation& self, const std::string& name, int nics) {
            return ValueOrRaise(self.AddGroup(name, nics));
          },
          nb::arg("name"), nb::arg("nics"))
      .def("step", &StepOnce)
      .def("run", &RunFor, nb::arg("timeout_us"))
      .def("kill", &Kill, nb::arg("group"))
      .def(
          "set_link",
          [](HostSimulation& self, size_t a, size_t b, bool works) { RaiseIfError(self.SetLink(a, b, works)); },
          nb::arg("a"), nb::arg("b"), nb::arg("works"))
      .def_prop_ro("now_ns", &HostSimulation::now_ns)
      .def_prop_ro("retransmissions", &HostSimulation::retransmissions)
      .def_prop_ro("reordered_segments", &HostSimulation::reordered_segments);
}

}  // namespace jax_fabric::ffi_layer
