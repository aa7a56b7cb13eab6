"""Names of fabrics, equal in all processes of a mesh."""

from __future__ import annotations

import collections
import hashlib
import itertools

import jax

from jax_fabric.bootstrap.exchange import Bootstrap

_LOOK_S = 0.05

# How many fabrics this process has made over each set of devices. Processes that share the set made
# as many; processes that do not share it are not concerned.
_counts: collections.Counter[str] = collections.Counter()


def following(mesh: jax.sharding.Mesh) -> str:
    """A name for a new fabric."""
    devices = _devices(mesh)
    number = _counts[devices]
    _counts[devices] += 1
    return _name(devices, number)


def latest(mesh: jax.sharding.Mesh, bootstrap: Bootstrap, timeout_s: float) -> str:
    """The name of the fabric that the other processes have made last.

    Raises:
      TimeoutError: they have made none.
    """
    devices = _devices(mesh)
    bootstrap.fetch(secret_key(_name(devices, 0)), timeout_s)
    for number in itertools.count(1):
        try:
            bootstrap.fetch(secret_key(_name(devices, number)), _LOOK_S)
        except TimeoutError:
            break
    _counts[devices] = number
    return _name(devices, number - 1)


def secret_key(name: str) -> str:
    """The first thing that a fabric of several processes publishes."""
    return f"{name}/secret"


def _name(devices: str, number: int) -> str:
    return f"jax_fabric/{devices}/{number}"


def _devices(mesh: jax.sharding.Mesh) -> str:
    ids = ",".join(str(each) for each in sorted(device.id for device in mesh.devices.flat))
    return hashlib.sha256(ids.encode()).hexdigest()[:16]
