#include "csrc/ffi/secret_bindings.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <optional>
#include <utility>

#include "csrc/ffi/environment.h"
#include "csrc/ffi/python_errors.h"

namespace nb = nanobind;

namespace jax_fabric::ffi_layer {
namespace {

std::unique_ptr<PythonSecret> Wrap(Secret secret) {
  auto key = ValueOrRaise(FabricKey::Create(secret));
  return std::make_unique<PythonSecret>(PythonSecret{std::move(secret), std::move(key)});
}

std::unique_ptr<PythonSecret> FromEnvironment() {
  std::optional<Secret> secret = ValueOrRaise(SecretFromEnvironment());
  return secret.has_value() ? Wrap(std::move(*secret)) : nullptr;
}

}  // namespace

void RegisterSecret(nb::module_& m) {
  nb::class_<PythonSecret>(m, "Secret")
      .def(nb::new_([](const nb::bytes& value) {
             return Wrap(ValueOrRaise(Secret::From({static_cast<const std::byte*>(value.data()), value.size()})));
           }),
           nb::arg("value"))
      .def_static("generate", [] { return Wrap(ValueOrRaise(Secret::Generate())); })
      .def_static("from_environment", &FromEnvironment)
      .def("reveal",
           [](const PythonSecret& self) {
             const std::span<const std::byte> bytes = self.secret.bytes();
             return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
           })
      .def_prop_ro("fingerprint",
                   [](const PythonSecret& self) { return fmt::format("{:08x}", self.key->fingerprint()); });
}

}  // namespace jax_fabric::ffi_layer
