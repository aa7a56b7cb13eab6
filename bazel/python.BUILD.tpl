load("@rules_cc//cc:defs.bzl", "cc_library")
load("@rules_python//python:defs.bzl", "py_library", "py_runtime", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

# Python %{version} at %{exe}
py_runtime(
    name = "runtime",
    interpreter_path = "%{exe}",
    python_version = "PY3",
    stub_shebang = "#!/usr/bin/env python3",  # Bazel 4's default is "python", which Debian lacks
)

py_runtime_pair(
    name = "runtime_pair",
    py3_runtime = ":runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)

genrule(
    name = "missing",
    outs = ["missing.h"],
    cmd = "echo 'jax_fabric: %{message}' >&2; exit 1",
    tags = ["manual"],
)

cc_library(
    name = "python_headers",
    hdrs = glob(["python_include/**/*.h", "python_multiarch/**/*.h"], allow_empty = True) + [%{required}],
    includes = ["python_include", "python_multiarch"],
)

cc_library(
    name = "xla_ffi_headers",
    hdrs = glob(["jaxlib_include/xla/ffi/**/*.h"], allow_empty = True) + [%{required}],
    includes = ["jaxlib_include"],
)

# nanobind 3 in split mode: bindings keep to the stable ABI (floor 3.10) and find the compiled half at
# import time (nanobind-backend on PyPI), so one extension serves every CPython >= 3.10.
cc_library(
    name = "nanobind",
    hdrs = glob(["nanobind/include/**/*.h"], allow_empty = True) + [%{required}],
    defines = [
        "NB_BACKEND_MODULE=nanobind_backend",
        "NB_BACKEND_PYPI=nanobind-backend",
        "Py_LIMITED_API=0x030A0000",
    ],
    includes = ["nanobind/include"],
    deps = [":python_headers"],
)

# jax itself comes with the interpreter; //:jax points here unless told otherwise.
py_library(name = "jax")
