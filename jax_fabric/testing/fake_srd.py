"""libfabric's real EFA provider on a fake NIC of this machine (docs/nics.md).

    provider = fake_srd.load()             # before anything else opens libfabric
    fabric = jf.Fabric(mesh, domain="efa", provider=provider)

Processes of one machine that have called :func:`load` reach each other. The fake NIC is built from
the sources of jax_fabric, and no part of its wheel; the provider comes with the wheel of MPICH.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.metadata
import os
from pathlib import Path

NAME = "fakesrd"  # what stands for it where a provider is chosen by name, as in the demonstration
_PROVIDER = "efa"
_TARGET = "csrc/engine/domains/efa/fakesrd/libfakesrd.so"
_WHEEL = "mpich==5.0.2"


@dataclasses.dataclass(frozen=True)
class Libraries:
    """What is loaded.

    Attributes:
      device: the fake NIC, in the place of libibverbs and libefa.
      libfabric: a version that knows EFA's writes.
    """

    device: Path
    libfabric: Path

    @property
    def providers(self) -> Path:
        """The folder of libfabric's providers."""
        return self.libfabric.parent / "libfabric"


def find() -> Libraries:
    """Finds the fake NIC and the libfabric that runs on it.

    Raises:
      FileNotFoundError: one of them is not there; the message says how to get it.
    """
    device = Path(__file__).resolve().parents[2] / "bazel-bin" / _TARGET
    if not device.is_file():
        folder, _, name = _TARGET.rpartition("/")
        raise FileNotFoundError(
            f"{NAME}: there is no {device}; build it in a checkout of jax_fabric: "
            f"bazel build --config=ci //{folder}:{name}"
        )
    try:
        files = importlib.metadata.files("mpich") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "libfabric.so.1":
            return Libraries(device, Path(os.path.realpath(file.locate())))
    raise FileNotFoundError(
        f"{NAME}: there is no libfabric with EFA's provider; install the wheel that carries one: "
        f"pip install {_WHEEL}"
    )


def load() -> str:
    """Has this process use the fake NIC; loading it again changes nothing.

    Returns:
      The provider to choose, "efa".

    Raises:
      FileNotFoundError: see :func:`find`.
      RuntimeError: another libfabric is loaded already.
    """
    libraries = find()
    if not _is_loaded(str(libraries.libfabric)):
        if _is_loaded("libfabric.so.1"):
            raise RuntimeError(
                f"{NAME}: this process has opened another libfabric already; load it before the "
                "first domain over libfabric is made"
            )
        # The provider looks for libibverbs' functions in global symbols first, and the engine's
        # "libfabric.so.1" is the one that is loaded by then.
        ctypes.CDLL(str(libraries.device), mode=ctypes.RTLD_GLOBAL)
        os.environ["FI_PROVIDER_PATH"] = str(libraries.providers)
        ctypes.CDLL(str(libraries.libfabric))
    return _PROVIDER


def _is_loaded(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return True
