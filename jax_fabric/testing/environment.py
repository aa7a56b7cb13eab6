"""Settings that XLA reads once, when JAX starts: they must be in the environment before that.

JAX starts at the first question about devices (``jax.devices()``, ``jax.make_mesh``, the first
array), not at ``import jax``. Call :func:`prepare_cpu` at the top of a test's ``conftest.py`` or of
a program's ``main``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import MutableMapping

_DEVICE_COUNT_FLAG = "--xla_force_host_platform_device_count"
_DEVICE_COUNT_PATTERN = re.compile(rf"{_DEVICE_COUNT_FLAG}=(\d+)")

# XLA:CPU takes one thread of a pool for every device that waits for another one. A pool with a
# thread a core deadlocks where devices outnumber cores; NPROC is what XLA believes the number of
# cores to be.
_THREADS_PER_DEVICE = 4
_FEWEST_THREADS = 32


def threads_for(local_devices: int) -> int:
    """Returns the NPROC that is safe for `local_devices` CPU devices in one process."""
    return max(_FEWEST_THREADS, _THREADS_PER_DEVICE * local_devices)


def jax_has_started() -> bool:
    """Returns whether JAX has already read the environment (its backends exist)."""
    if "jax" not in sys.modules:
        return False
    import jax

    value = jax.config.jax_num_cpu_devices
    try:
        # JAX refuses to change this option once its backends exist.
        jax.config.update("jax_num_cpu_devices", 1 if value != 1 else 2)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", value)
    return False


def cpu_environment(local_devices: int, base: MutableMapping[str, str]) -> dict[str, str]:
    """Returns a copy of `base` that gives a new process `local_devices` CPU devices.

    Args:
      local_devices: devices of the process, 1 or more.
      base: the environment to start from, usually ``os.environ``. An ``NPROC`` that is large
        enough and other ``XLA_FLAGS`` are kept.

    Raises:
      ValueError: `local_devices` is below 1.
    """
    if local_devices < 1:
        raise ValueError(f"local_devices is {local_devices}; it must be 1 or more")
    environment = dict(base)
    other_flags = _DEVICE_COUNT_PATTERN.sub("", environment.get("XLA_FLAGS", "")).split()
    environment["XLA_FLAGS"] = " ".join([*other_flags, f"{_DEVICE_COUNT_FLAG}={local_devices}"])
    environment["JAX_PLATFORMS"] = "cpu"
    given = environment.get("NPROC", "")
    threads = threads_for(local_devices)
    if not given.isdecimal() or int(given) < threads:
        environment["NPROC"] = str(threads)
    return environment


def prepare_cpu(local_devices: int) -> None:
    """Makes this process see `local_devices` CPU devices when JAX starts.

    Sets ``XLA_FLAGS``, ``JAX_PLATFORMS`` and ``NPROC`` in ``os.environ``; child processes inherit
    them. Calling it again with the same number is fine, also after JAX has started.

    Raises:
      ValueError: `local_devices` is below 1.
      RuntimeError: JAX has started with another number of devices or too small a thread pool.
    """
    wanted = cpu_environment(local_devices, os.environ)
    names = ("XLA_FLAGS", "JAX_PLATFORMS", "NPROC")
    changes = [
        f"{name}={wanted[name]!r} (now {os.environ.get(name)!r})"
        for name in names
        if os.environ.get(name) != wanted[name] and not _same_flags(name, wanted[name])
    ]
    if changes and jax_has_started():
        raise RuntimeError(
            "JAX has already started, so these settings would have no effect: "
            + "; ".join(changes)
            + ". Call prepare_cpu before anything asks for devices or makes an array, or set them "
            "in the environment of the process."
        )
    for name in names:
        os.environ[name] = wanted[name]
    if "jax" in sys.modules:
        import jax

        # `import jax` has read JAX_PLATFORMS already; the option itself may still change.
        if jax.config.jax_platforms != "cpu":
            jax.config.update("jax_platforms", "cpu")


def _same_flags(name: str, wanted: str) -> bool:
    """Returns whether XLA_FLAGS differs from `wanted` in the order of its flags only."""
    return name == "XLA_FLAGS" and sorted(os.environ.get(name, "").split()) == sorted(
        wanted.split()
    )
