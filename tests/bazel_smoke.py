"""A Bazel target finds the package and its extension, both from Bazel's own output."""

import os

# Before jax starts: its thread pool must outnumber the devices.
os.environ.setdefault("NPROC", "32")

import jax_fabric  # noqa: E402
import jax_fabric._core as core  # noqa: E402

assert "runfiles" in jax_fabric.__file__, jax_fabric.__file__
assert "runfiles" in core.__file__, core.__file__
major, minor = core.ffi_api_version()
print(f"jax_fabric at {jax_fabric.__file__}, XLA FFI API {major}.{minor}")
