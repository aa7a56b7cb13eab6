// The binding of a custom call, from the signature of the function that runs it.
//
// Such a function takes what every call has (its state, device, run and rank), then operands, results as ffi::Result
// and, last, attributes: context, channel and call_index, then those that are its own.
#ifndef JAX_FABRIC_FFI_CALL_BINDING_H_
#define JAX_FABRIC_FFI_CALL_BINDING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "csrc/ffi/moe_call.h"
#include "csrc/ffi/xla_ffi.h"

namespace jax_fabric::ffi_layer {
namespace binding {

template <typename T>
struct ResultOf : std::false_type {};
template <typename T>
struct ResultOf<ffi::Result<T>> : std::true_type {
  using type = T;
};

// Adds a parameter as what its type says that it is; an attribute gets this name. Bindings move, but cannot be kept.
template <typename Parameter, typename Binding>
auto AddOne(Binding&& bound, const std::string& name) {
  if constexpr (ResultOf<Parameter>::value) {
    return std::move(bound).template Ret<typename ResultOf<Parameter>::type>();
  } else if constexpr (std::is_same_v<Parameter, ffi::RemainingArgs>) {
    return std::move(bound).RemainingArgs();
  } else if constexpr (std::is_arithmetic_v<Parameter>) {
    return std::move(bound).template Attr<Parameter>(name);
  } else {
    return std::move(bound).template Arg<Parameter>();
  }
}

// `name` is that of the next attribute.
template <typename First, typename... Rest, typename Binding>
auto Add(Binding&& bound, const std::string* name) {
  if constexpr (sizeof...(Rest) == 0) {
    return AddOne<First>(std::move(bound), *name);
  } else {
    return Add<Rest...>(AddOne<First>(std::move(bound), *name), name + std::is_arithmetic_v<First>);
  }
}

}  // namespace binding

// Of all attributes of a function with these parameters, those that every call has first.
template <typename... Parameters, typename... Names>
std::vector<std::string> AttributeNames(const Names&... own_attributes) {
  constexpr size_t kAttributes = (size_t{0} + ... + size_t{std::is_arithmetic_v<Parameters>});
  static_assert(kAttributes == 3 + sizeof...(Names), "an attribute without a name, or a name without one");
  return {"context", "channel", "call_index", own_attributes...};
}

template <typename... Parameters, typename... Names>
auto BindingOf(ffi::Future (*)(CallSiteState*, int32_t, ffi::RunId, RankOperand, Parameters...),
               const Names&... own_attributes) {
  const std::vector<std::string> names = AttributeNames<Parameters...>(own_attributes...);
  return binding::Add<Parameters...>(ffi::Ffi::Bind()
                                         .Ctx<ffi::State<CallSiteState>>()
                                         .Ctx<ffi::DeviceOrdinal>()
                                         .Ctx<ffi::RunId>()
                                         .template Arg<RankOperand>(),
                                     names.data());
}

}  // namespace jax_fabric::ffi_layer

#endif  // JAX_FABRIC_FFI_CALL_BINDING_H_
