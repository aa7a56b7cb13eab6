"""Toolchain registration for WORKSPACE users."""

def jax_fabric_register_toolchains():
    """py_binary and py_test run with the interpreter that the extension was configured for."""
    native.register_toolchains("@jax_fabric_python//:toolchain")
