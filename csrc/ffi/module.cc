// The extension module jax_fabric._core: conversions between Python and the engine.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>

#include "csrc/ffi/bump_call.h"
#include "csrc/ffi/context_table.h"
#include "csrc/ffi/empty_call.h"
#include "csrc/ffi/environment.h"
#include "csrc/ffi/gpu_platform.h"
#include "csrc/ffi/host/bindings.h"
#include "csrc/ffi/local_engine.h"
#include "csrc/ffi/model_bindings.h"
#include "csrc/ffi/moe_handlers.h"
#include "csrc/ffi/program_watcher_bindings.h"
#include "csrc/ffi/python_errors.h"
#include "csrc/ffi/secret_bindings.h"
#include "csrc/ffi/xla_ffi.h"

namespace nb = nanobind;

namespace jax_fabric::ffi_layer {
namespace {

// Of this process; the processes of a fabric agree on the highest.
std::atomic<int64_t> next_handle{0};

kernels::ElementType ParseType(const std::string& name) {
  if (name == "float32") return kernels::ElementType::kFloat32;
  if (name == "bfloat16") return kernels::ElementType::kBfloat16;
  if (name == "float16") return kernels::ElementType::kFloat16;
  if (name == "float8_e4m3fn") return kernels::ElementType::kFloat8E4m3fn;
  Raise(Error{ErrorCode::kInvalidArgument,
              fmt::format("dtype={}: must be one of float32, bfloat16, float16, float8_e4m3fn", name)});
}

moe::MoeConfig MakeConfig(int32_t ranks, int32_t rank, int32_t experts, int32_t max_tokens, int32_t private_tokens,
                          int32_t top_k, int32_t hidden, int64_t capacity, const std::string& dispatch_type,
                          const std::string& combine_type, const std::string& redispatch_type, int32_t channels,
                          int64_t timeout_us, bool drop_overflow, uint32_t membership_epoch,
                          const std::vector<uint8_t>& absent) {
  moe::MoeConfig config;
  kernels::MoeShape& shape = config.layout.shape;
  shape.ranks = ranks;
  shape.rank = rank;
  shape.experts = experts;
  shape.experts_per_rank = ranks < 1 ? 0 : (experts + ranks - 1) / ranks;
  shape.max_tokens = max_tokens;
  shape.private_tokens = private_tokens;
  shape.top_k = top_k;
  shape.hidden = hidden;
  shape.capacity = capacity;
  config.layout.dispatch_type = ParseType(dispatch_type);
  config.layout.combine_type = ParseType(combine_type);
  config.layout.redispatch_type = ParseType(redispatch_type);
  config.layout.quantised = config.layout.dispatch_type == kernels::ElementType::kFloat8E4m3fn;
  config.channels = channels;
  config.timeout_us = timeout_us;
  config.drop_overflow = drop_overflow;
  config.membership_epoch = membership_epoch;
  config.absent = absent;
  RaiseIfError(config.Validate());
  return config;
}

nb::bytes ToPython(const Bytes& bytes) { return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size()); }

void Connect(moe::RankContext& context, const std::vector<nb::bytes>& introductions, int64_t timeout_us) {
  std::vector<Bytes> blobs;
  for (const nb::bytes& each : introductions) {
    const auto* begin = static_cast<const std::byte*>(each.data());
    blobs.emplace_back(begin, begin + each.size());
  }
  Status status;
  {
    nb::gil_scoped_release released;
    status = context.Connect(blobs, Deadline::After(SteadyClock::Get(), timeout_us));
  }
  RaiseIfError(status);
}

nb::dict FfiTargets(const std::string& platform) {
  nb::dict targets;
  std::vector<Target> all;
  if (platform == "cpu") {
    all = MoeTargets();
    all.push_back(BumpTarget());
    all.push_back(EmptyCallTarget());
  } else if (platform == "CUDA") {
    all = GpuTargets();
  }
  for (const Target& target : all) {
    nb::dict stages;
    if (target.instantiate != nullptr) {
      stages["instantiate"] = nb::capsule(reinterpret_cast<void*>(target.instantiate));
    }
    stages["execute"] = nb::capsule(reinterpret_cast<void*>(target.execute));
    targets[target.name] = stages;
  }
  return targets;
}

nb::dict FfiTypes() {
  const auto [id, info] = CallSiteType();
  nb::dict types;
  types["jf_moe_call_site"] =
      nb::make_tuple(nb::capsule(static_cast<void*>(id)), nb::capsule(static_cast<void*>(info)));
  return types;
}

// Returns the lowest one that was free before.
int64_t ReserveHandles(int64_t first_free) {
  int64_t seen = next_handle.load();
  while (seen < first_free && !next_handle.compare_exchange_weak(seen, first_free)) {
  }
  return seen;
}

}  // namespace

NB_MODULE(_core, m) {
  RegisterSecret(m);
  RegisterHostBindings(m);
  RegisterProgramWatcherBindings(m);
  RegisterModelBindings(m);

  m.def("ffi_api_version", [] { return nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); });
  m.def("ffi_targets", &FfiTargets, nb::arg("platform"));
  m.def("has_cuda", &HasGpu);
  m.def("ffi_types", &FfiTypes);
  m.def("next_handle", [] { return next_handle.fetch_add(1); });
  m.def("reserve_handles", &ReserveHandles, nb::arg("first_free"));

  nb::class_<moe::MoeConfig>(m, "MoeConfig")
      .def(
          "__init__",
          [](moe::MoeConfig* self, int32_t ranks, int32_t rank, int32_t experts, int32_t max_tokens,
             int32_t private_tokens, int32_t top_k, int32_t hidden, int64_t capacity, const std::string& dispatch_type,
             const std::string& combine_type, const std::string& redispatch_type, int32_t channels, int64_t timeout_us,
             bool drop_overflow, uint32_t membership_epoch, const std::vector<uint8_t>& absent) {
            new (self) moe::MoeConfig(MakeConfig(ranks, rank, experts, max_tokens, private_tokens, top_k, hidden,
                                                 capacity, dispatch_type, combine_type, redispatch_type, channels,
                                                 timeout_us, drop_overflow, membership_epoch, absent));
          },
          nb::kw_only(), nb::arg("ranks"), nb::arg("rank"), nb::arg("experts"), nb::arg("max_tokens"),
          nb::arg("private_tokens"), nb::arg("top_k"), nb::arg("hidden"), nb::arg("capacity"), nb::arg("dispatch_type"),
          nb::arg("combine_type"), nb::arg("redispatch_type"), nb::arg("channels"), nb::arg("timeout_us"),
          nb::arg("drop_overflow"), nb::arg("membership_epoch"), nb::arg("absent"))
      .def("memory_bytes", &moe::MoeConfig::MemoryBytes);

  nb::class_<moe::RankContext>(m, "MoeContext")
      .def("introduction", [](const moe::RankContext& self) { return ToPython(ValueOrRaise(self.Introduction())); })
      .def("connect", &Connect, nb::arg("introductions"), nb::arg("timeout_us"))
      .def("lost_ranks", &moe::RankContext::LostRanks)
      .def_prop_ro("mapped_peers", &moe::RankContext::mapped_peers)
      .def_prop_ro("memory_bytes", &moe::RankContext::memory_bytes);

  nb::class_<LocalEngine>(m, "Engine")
      .def(nb::new_([](int worker_threads, const PythonSecret* secret) {
             return ValueOrRaise(LocalEngine::Create(worker_threads, KeyOf(secret)));
           }),
           nb::arg("worker_threads"), nb::arg("secret").none())
      .def(
          "add_group",
          [](LocalEngine& self, const std::string& name, const std::optional<std::string>& domain,
             const std::optional<std::string>& provider, const std::vector<std::string>& nics,
             const std::vector<int>& cpus, std::optional<int> cuda_device, bool force_staged,
             const std::optional<std::string>& node) {
            const DomainChoice choice = ValueOrRaise(DomainChoiceFromEnvironment(domain, provider, nics));
            std::optional<GpuOptions> gpu;
            if (cuda_device) {
              gpu = GpuOptions{*cuda_device, force_staged, node, ValueOrRaise(GdrcopyLibraryFromEnvironment())};
            }
            return ValueOrRaise(self.AddGroup(name, choice, std::move(gpu), cpus));
          },
          nb::arg("name"), nb::arg("domain").none(), nb::arg("provider").none(), nb::arg("nics"), nb::arg("cpus"),
          nb::arg("cuda_device").none(), nb::arg("force_staged"), nb::arg("node").none())
      .def(
          "add_moe_context",
          [](LocalEngine& self, size_t device, const moe::MoeConfig& config, int64_t handle, int32_t ordinal) {
            return ValueOrRaise(self.AddMoeContext(device, config, handle, ordinal));
          },
          nb::rv_policy::reference_internal, nb::arg("device"), nb::arg("config"), nb::arg("handle"),
          nb::arg("ordinal"))
      .def(
          "close_moe_contexts",
          [](LocalEngine& self, int64_t handle, int64_t timeout_us) {
            Status closed;
            {
              nb::gil_scoped_release released;
              closed = self.CloseMoeContexts(handle, timeout_us);
            }
            RaiseIfError(closed);
          },
          nb::arg("handle"), nb::arg("timeout_us"))
      .def("first_error",
           [](const LocalEngine& self) {
             const Error* error = self.FirstError();
             return error == nullptr ? std::optional<std::string>() : std::optional<std::string>(error->message);
           })
      .def("take_refusal",
           [](LocalEngine& self) {
             const std::optional<Error> refusal = self.TakeRefusal();
             return refusal ? std::optional<std::string>(refusal->message) : std::optional<std::string>();
           })
      .def("close", &LocalEngine::Close, nb::arg("timeout_us"), nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace jax_fabric::ffi_layer
