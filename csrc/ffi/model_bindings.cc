#include "csrc/ffi/model_bindings.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <string>

#include "csrc/ffi/python_errors.h"
#include "csrc/moe/model/model_options.h"

namespace nb = nanobind;

namespace jax_fabric::ffi_layer {
namespace {

using moe::model::ModelOptions;
using moe::model::ModelTimes;
using moe::model::Protocol;

int64_t Nanoseconds(double microseconds) { return std::llround(microseconds * 1e3); }

Protocol ParseProtocol(const std::string& name) {
  if (name == "channel") return Protocol::kChannel;
  if (name == "rounds") return Protocol::kRounds;
  if (name == "two_phases") return Protocol::kTwoPhases;
  Raise(
      Error{ErrorCode::kInvalidArgument, fmt::format("protocol={}: must be one of channel, rounds, two_phases", name)});
}

ModelTimes SimulateMoe(const std::string& protocol, int32_t ranks, int32_t representatives, int32_t node_ranks,
                       int32_t experts, int32_t top_k, int32_t tokens, int32_t hidden, int32_t private_tokens,
                       int32_t calls, uint64_t seed, double between_us, double latency_us, double bytes_per_ns,
                       double post_us, double launch_us, double dispatch_send_us, double dispatch_receive_us,
                       double combine_send_us, double combine_receive_us, double host_us) {
  ModelOptions options;
  options.protocol = ParseProtocol(protocol);
  options.ranks = ranks;
  options.representatives = representatives;
  options.node_ranks = node_ranks;
  options.experts = experts;
  options.top_k = top_k;
  options.tokens = tokens;
  options.hidden = hidden;
  options.private_tokens = private_tokens;
  options.calls = calls;
  options.seed = seed;
  options.between_ns = Nanoseconds(between_us);
  options.nic.latency_ns = Nanoseconds(latency_us);
  options.nic.bytes_per_ns = bytes_per_ns;
  options.nic.post_ns = Nanoseconds(post_us);
  options.kernels = {.launch_ns = Nanoseconds(launch_us),
                     .dispatch_send_ns = Nanoseconds(dispatch_send_us),
                     .dispatch_receive_ns = Nanoseconds(dispatch_receive_us),
                     .combine_send_ns = Nanoseconds(combine_send_us),
                     .combine_receive_ns = Nanoseconds(combine_receive_us),
                     .host_ns = Nanoseconds(host_us)};
  const auto times = [&] {
    const nb::gil_scoped_release released;
    return RunModel(options);
  }();
  return ValueOrRaise(times);
}

}  // namespace

void RegisterModelBindings(nb::module_& m) {
  nb::class_<ModelTimes>(m, "ModelTimes")
      .def_ro("dispatch_us", &ModelTimes::dispatch_us)
      .def_ro("combine_us", &ModelTimes::combine_us)
      .def_ro("writes", &ModelTimes::writes)
      .def_ro("wire_bytes", &ModelTimes::wire_bytes);
  m.def("simulate_moe", &SimulateMoe, nb::kw_only(), nb::arg("protocol"), nb::arg("ranks"), nb::arg("representatives"),
        nb::arg("node_ranks"), nb::arg("experts"), nb::arg("top_k"), nb::arg("tokens"), nb::arg("hidden"),
        nb::arg("private_tokens"), nb::arg("calls"), nb::arg("seed"), nb::arg("between_us"), nb::arg("latency_us"),
        nb::arg("bytes_per_ns"), nb::arg("post_us"), nb::arg("launch_us"), nb::arg("dispatch_send_us"),
        nb::arg("dispatch_receive_us"), nb::arg("combine_send_us"), nb::arg("combine_receive_us"), nb::arg("host_us"));
}

}  // namespace jax_fabric::ffi_layer
