"""Checks of libraries: jax, libibverbs, libfabric and its providers."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
from collections.abc import Collection, Iterator

import jax_fabric
from jax_fabric import _core
from jax_fabric.observe.doctor.finding import Finding

_EFA_NEEDS = (1, 18)
_EFA_INSTALLER = (
    "install Amazon's EFA installer (docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html)"
)


class _FabricAttributes(ctypes.Structure):
    _fields_ = (
        ("fabric", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("prov_name", ctypes.c_char_p),
        ("prov_version", ctypes.c_uint32),
        ("api_version", ctypes.c_uint32),
    )


class _FabricInfo(ctypes.Structure):
    """``struct fi_info`` of libfabric, which has not changed since 1.0."""


_FabricInfo._fields_ = (
    ("next", ctypes.POINTER(_FabricInfo)),
    ("caps", ctypes.c_uint64),
    ("mode", ctypes.c_uint64),
    ("addr_format", ctypes.c_uint32),
    ("src_addrlen", ctypes.c_size_t),
    ("dest_addrlen", ctypes.c_size_t),
    ("src_addr", ctypes.c_void_p),
    ("dest_addr", ctypes.c_void_p),
    ("handle", ctypes.c_void_p),
    ("tx_attr", ctypes.c_void_p),
    ("rx_attr", ctypes.c_void_p),
    ("ep_attr", ctypes.c_void_p),
    ("domain_attr", ctypes.c_void_p),
    ("fabric_attr", ctypes.POINTER(_FabricAttributes)),
)


def library_findings(needed: Collection[str]) -> Iterator[Finding]:
    """What concerns libraries.

    Args:
      needed: families of NICs, "efa" and "connectx", whose library must be there.
    """
    versions = [f"jax_fabric {jax_fabric.__version__}"]
    versions += [f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib")]
    api = ".".join(map(str, _core.ffi_api_version()))
    yield Finding("jax_fabric", "versions", "ok", f"{', '.join(versions)}, FFI headers {api}")
    yield _libibverbs("connectx" in needed)
    yield from _libfabric("efa" in needed)


def _libibverbs(needed: bool) -> Finding:
    try:
        library = ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return Finding(
            "libibverbs",
            "library",
            "problem" if needed else "note",
            "not found: no domain='connectx'",
            "sudo apt-get install libibverbs1 ibverbs-providers",
        )
    dmabuf = "with" if hasattr(library, "ibv_reg_dmabuf_mr") else "without"
    return Finding(
        "libibverbs", "library", "ok", f"{_version_of_file('libibverbs')}, {dmabuf} dmabuf"
    )


def _version_of_file(library: str) -> str:
    """Of an open library: rdma-core's version ends the name of its file."""
    with open("/proc/self/maps") as maps:
        match = re.search(rf"/\S*/{library}\.so\S*", maps.read())
    if match is None:
        return "version unknown"
    name = os.path.basename(os.path.realpath(match[0]))
    version = re.search(r"\.so\.(?:\d+\.\d+\.)?(\d+\.\d+)$", name)
    return f"rdma-core {version[1]}" if version else name


def _open_libfabric() -> ctypes.CDLL:
    """Opens it so that Ctrl-C stays Python's: the PSM libraries that Debian's brings would take it.

    Raises:
      OSError: it is not there.
    """
    quiet = {"IPATH_NO_BACKTRACE": "1", "HFI_NO_BACKTRACE": "1"}
    before = {name: os.environ.get(name) for name in quiet}
    os.environ.update(quiet)
    try:
        return ctypes.CDLL("libfabric.so.1")
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _libfabric(needed: bool) -> Iterator[Finding]:
    try:
        library = _open_libfabric()
    except OSError:
        yield Finding(
            "libfabric",
            "library",
            "problem" if needed else "note",
            "not found: no domain='efa'",
            _EFA_INSTALLER + "; sudo apt-get install libfabric1 for the provider tcp",
        )
        return
    library.fi_version.restype = ctypes.c_uint32
    version = library.fi_version()
    numbers = (version >> 16, version & 0xFFFF)
    words = ".".join(map(str, numbers))
    if needed and numbers < _EFA_NEEDS:
        least = ".".join(map(str, _EFA_NEEDS))
        yield Finding(
            "libfabric", "library", "problem", f"{words}; EFA needs {least}", _EFA_INSTALLER
        )
    else:
        yield Finding("libfabric", "library", "ok", words)
    providers = _providers(library, version)
    if needed and "efa" not in providers:
        value = f"no efa among {_listed(providers)}"
        yield Finding("libfabric", "providers", "problem", value, _EFA_INSTALLER)
    else:
        yield Finding("libfabric", "providers", "ok", _listed(providers))


def _providers(library: ctypes.CDLL, version: int) -> tuple[str, ...]:
    """Names of all that libfabric offers here."""
    first = ctypes.POINTER(_FabricInfo)()
    library.fi_getinfo.argtypes = (
        *(ctypes.c_uint32, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64),
        *(ctypes.c_void_p, ctypes.POINTER(ctypes.POINTER(_FabricInfo))),
    )
    library.fi_freeinfo.argtypes = (ctypes.POINTER(_FabricInfo),)
    if library.fi_getinfo(version, None, None, 0, None, ctypes.byref(first)) != 0:
        return ()
    names = set()
    each = first
    while each:
        names.add(each.contents.fabric_attr.contents.prov_name.decode())
        each = each.contents.next
    library.fi_freeinfo(first)
    return tuple(sorted(names))


def _listed(names: Collection[str]) -> str:
    return ", ".join(names) or "none"
