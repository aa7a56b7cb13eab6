"""A Python target of this workspace uses jax_fabric as it would use any other dependency."""

import os

# Before jax starts: its thread pool must outnumber the devices.
os.environ.setdefault("NPROC", "32")

import jax  # noqa: E402

import jax_fabric  # noqa: E402
import jax_fabric._core as core  # noqa: E402

print("jax", jax.__version__, "XLA FFI API", core.ffi_api_version(), jax_fabric.__file__)
