#include "csrc/ffi/python_errors.h"

#include <string>

namespace nb = nanobind;

namespace jax_fabric::ffi_layer {
namespace {

nb::object TextOrNone(const std::string& text) {
  return text.empty() ? nb::none() : nb::object(nb::str(text.data(), text.size()));
}

}  // namespace

nb::object ToException(const Error& error) {
  const std::string_view code = ErrorCodeName(error.code);
  return nb::module_::import_("jax_fabric.errors")
      .attr("from_status")(nb::str(code.data(), code.size()), nb::str(error.message.data(), error.message.size()),
                           TextOrNone(error.peer), TextOrNone(error.nic));
}

void Raise(const Error& error) {
  const nb::object exception = ToException(error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

}  // namespace jax_fabric::ffi_layer
