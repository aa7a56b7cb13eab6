#include "csrc/ffi/bump_call.h"

#include <atomic>

#include "csrc/ffi/async_call.h"

namespace jax_fabric::ffi_layer {
namespace {

namespace ffi = xla::ffi;

ffi::Error Bump(int32_t device, BumpValue value, ffi::RemainingArgs operands, ffi::RemainingRets results,
                int64_t watcher, int64_t) {
  const auto word = WordToBump(watcher, device, value, operands, results);
  if (!word) return ToXlaError(word.error());
  const uint64_t low = value.typed_data()[0], high = value.typed_data()[1];
  // Release, partner: the acquire in Watcher::Word::Poll.
  std::atomic_ref(**word).store(high << 32 | low, std::memory_order_release);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kBump, Bump,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<BumpValue>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<int64_t>("watcher")
                           .Attr<int64_t>("call_index"));

}  // namespace

Result<uint64_t*> WordToBump(int64_t watcher, int32_t device, const BumpValue& value,
                             const ffi::RemainingArgs& operands, const ffi::RemainingRets& results) {
  bool in_place = value.element_count() == 2 && operands.size() == results.size();
  for (size_t i = 0; i < operands.size() && in_place; ++i) {
    const auto operand = operands.get<ffi::AnyBuffer>(i);
    auto result = results.get<ffi::AnyBuffer>(i);
    in_place = operand.has_value() && result.has_value() && operand->untyped_data() == (*result)->untyped_data();
  }
  if (!in_place) return MakeError(ErrorCode::kInvalidArgument, "jf_bump: to be called by jax_fabric.bump");
  return WatcherTable::Get().Find(watcher, device);
}

Target BumpTarget() { return {"jf_bump", nullptr, kBump}; }

}  // namespace jax_fabric::ffi_layer
