#include "csrc/ffi/moe_call.h"

#include <algorithm>
#include <atomic>

#include "csrc/base/cache_size.h"
#include "csrc/ffi/moe_arguments.h"
#include "csrc/ffi/moe_handlers.h"

namespace jax_fabric::ffi_layer {
namespace {

ffi::TypeInfo call_site_info = ffi::MakeTypeInfo<CallSiteState>();

ffi::ErrorOr<std::unique_ptr<CallSiteState>> Instantiate(ffi::Dictionary attributes) {
  const auto context = attributes.get<int64_t>("context");
  const auto channel = attributes.get<int64_t>("channel");
  const auto call_index = attributes.get<int64_t>("call_index");
  if (!context || !channel || !call_index) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("a call needs the attributes context, channel and call_index"));
  }
  static std::atomic<uint64_t> next_serial{1};
  auto state = std::make_unique<CallSiteState>();
  state->site.serial = next_serial.fetch_add(1, std::memory_order_relaxed);
  state->site.key = Signature({*context, *channel, *call_index});
  return ffi::ErrorOr<std::unique_ptr<CallSiteState>>(std::move(state));
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Attrs());

}  // namespace

XLA_FFI_Handler* const kInstantiateCall = kInstantiate;

ffi::TypeId CallSiteState::id = {};

std::pair<XLA_FFI_TypeId*, XLA_FFI_TypeInfo*> CallSiteType() { return {&CallSiteState::id, &call_site_info}; }

ffi::Future Failed(const Error& error) {
  ffi::Promise promise;
  ffi::Future future(promise);
  promise.SetError(ToXlaError(error));
  return future;
}

Error NoSuchRank(int64_t context, int32_t device) {
  return Error{ErrorCode::kNotFound,
               fmt::format("expert-parallel context {} has no rank on device {}: call it inside of shard_map over "
                           "the Fabric's mesh",
                           context, device)};
}

Destination::Destination(LocalRank* rank, int64_t channel_index, int32_t axis_rank) : visit(rank) {
  if (visit.context() == nullptr) {
    error = Error{ErrorCode::kFailedPrecondition, "the fabric of this expert-parallel context was closed"};
    return;
  }
  if (visit.context()->platform() != moe::Platform::kHost) {
    error = Error{ErrorCode::kInvalidArgument, "a computation on the CPU calls an expert-parallel context on GPUs"};
    return;
  }
  auto* context = static_cast<moe::Context*>(visit.context());
  const int32_t expected = context->config().layout.shape.rank;
  if (axis_rank != expected) {
    error = Error{ErrorCode::kInvalidArgument,
                  fmt::format("called on rank {} of the axis, and this device is rank {} of the context: use the mesh "
                              "that the Fabric was made with",
                              axis_rank, expected)};
    return;
  }
  channel = context->channel(static_cast<int32_t>(channel_index));
  if (channel == nullptr) {
    error = Error{ErrorCode::kInvalidArgument, fmt::format("channel={}: the context has channels 0 to {}",
                                                           channel_index, context->config().channels - 1)};
  }
}

// Ranks of one machine share the cache, and between two uses of a row lie those of the other kernels: measured
// (kernels_benchmark, 2 to 8 ranks), stores past the caches win from about a quarter of a rank's share on.
int64_t Destination::cache_bytes() const {
  return LastLevelCacheBytes() / (4 * std::max(1, visit.context()->mapped_peers()));
}

}  // namespace jax_fabric::ffi_layer
