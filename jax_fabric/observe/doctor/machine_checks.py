"""Checks of the machine itself: cores, limits, memory."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from typing import Any

from jax_fabric.observe.doctor.finding import Finding, State
from jax_fabric.topology import Machine, Sysfs, format_cpu_list

_GIB = 1 << 30
# Registered memory is locked: less than this is not enough for anything but tests.
_LEAST_LOCKED = _GIB
_LEAST_SHM = _GIB
_CAP_IPC_LOCK = 14
_SUBJECT = "machine"


def machine_findings(sysfs: Sysfs, machine: Machine, needs_nics: bool) -> Iterator[Finding]:
    """What concerns the machine as a whole.

    Args:
      sysfs: its files.
      machine: what the topology says.
      needs_nics: whether a missing condition of NICs is a problem.
    """
    kernel = sysfs.text("proc", "sys", "kernel", "osrelease")
    yield Finding(_SUBJECT, "kernel", "note", kernel or "unknown")
    yield _cores(sysfs, machine)
    yield _locked_memory(sysfs, needs_nics)
    yield _ptrace(sysfs)
    yield from _huge_pages(sysfs)
    yield from _shm(sysfs)
    yield from _host_name(sysfs)


def _cores(sysfs: Sysfs, machine: Machine) -> Finding:
    listed = _status(sysfs).get("Cpus_allowed_list", "")
    usable = len(os.sched_getaffinity(0)) if str(sysfs.root) == "/" else _count(listed)
    nodes = "; ".join(f"node {n.index}: {format_cpu_list(n.cpus)}" for n in machine.numa_nodes)
    value = f"{usable or 'unknown number of'} cores may be used" + (f" ({nodes})" if nodes else "")
    if 0 < usable < 4:
        return Finding(
            _SUBJECT,
            "cores",
            "warning",
            value,
            "give the process more (taskset, docker --cpus, SLURM --cpus-per-task); with so few, "
            "threads that poll take them from the program: JAX_FABRIC_IDLE=sleep",
        )
    return Finding(_SUBJECT, "cores", "ok" if usable else "note", value)


def _count(cpu_list: str) -> int:
    runs = re.findall(r"(\d+)(?:-(\d+))?", cpu_list)
    return sum(int(last or first) - int(first) + 1 for first, last in runs)


def _status(sysfs: Sysfs) -> dict[str, str]:
    lines = (sysfs.text("proc", "self", "status") or "").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _locked_memory(sysfs: Sysfs, needs_nics: bool) -> Finding:
    limits = sysfs.text("proc", "self", "limits") or ""
    match = re.search(r"^Max locked memory\s+(\S+)", limits, re.MULTILINE)
    if match is None:
        return Finding(_SUBJECT, "memlock", "note", "unknown")
    capabilities = int(_status(sysfs).get("CapEff", "0"), 16)
    if match[1] == "unlimited":
        return Finding(_SUBJECT, "memlock", "ok", "unlimited")
    limit = int(match[1])
    if capabilities >> _CAP_IPC_LOCK & 1:
        return Finding(_SUBJECT, "memlock", "ok", f"{_bytes(limit)}, lifted by CAP_IPC_LOCK")
    if limit >= _LEAST_LOCKED:
        return Finding(_SUBJECT, "memlock", "ok", _bytes(limit))
    state: State = "problem" if needs_nics else "note"
    return Finding(
        _SUBJECT,
        "memlock",
        state,
        f"{_bytes(limit)}: NICs cannot register more than that",
        "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/rdma.conf and log in "
        "again; docker run --ulimit memlock=-1; systemd LimitMEMLOCK=infinity",
    )


def _ptrace(sysfs: Sysfs) -> Finding:
    scope = sysfs.text("proc", "sys", "kernel", "yama", "ptrace_scope")
    if scope in (None, "0"):
        return Finding(_SUBJECT, "ptrace scope", "ok", "0" if scope else "not restricted")
    return Finding(
        _SUBJECT,
        "ptrace scope",
        "warning",
        f"{scope}: processes of one machine cannot write into each other's arrays, which then go "
        f"in pieces through slots (memory of jax_fabric.memory.allocate does not)",
        "sudo sysctl kernel.yama.ptrace_scope=0; docker run --cap-add SYS_PTRACE",
    )


def _huge_pages(sysfs: Sysfs) -> Iterator[Finding]:
    text = sysfs.text("sys", "kernel", "mm", "transparent_hugepage", "enabled") or ""
    match = re.search(r"\[(\w+)\]", text)
    if match is None:
        yield Finding(_SUBJECT, "huge pages", "note", "the kernel has no transparent ones")
    elif match[1] == "never":
        yield Finding(
            _SUBJECT,
            "huge pages",
            "warning",
            "transparent ones are off: copies of large messages are slower",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )
    else:
        yield Finding(_SUBJECT, "huge pages", "ok", f"transparent, {match[1]}")


def _shm(sysfs: Sysfs) -> Iterator[Finding]:
    """Of /dev/shm, which NCCL, MPI and libfabric's shm want; our own memory is from memfd."""
    if str(sysfs.root) != "/":
        return
    try:
        about: Any = os.statvfs("/dev/shm")
    except OSError:
        size = 0
    else:
        size = about.f_blocks * about.f_frsize
    if size >= _LEAST_SHM:
        yield Finding(_SUBJECT, "/dev/shm", "ok", f"{_bytes(size)} (domain local does not use it)")
    else:
        yield Finding(
            _SUBJECT,
            "/dev/shm",
            "note",
            f"{_bytes(size)}: domain local does not use it; NCCL and libfabric's shm do",
            "sudo mount -o remount,size=8G /dev/shm; docker run --shm-size=8g",
        )


def _host_name(sysfs: Sysfs) -> Iterator[Finding]:
    """JAX looks it up when programs on CPUs span processes, and says no more than "-2 vs 0"."""
    if str(sysfs.root) != "/":
        return
    name = socket.gethostname()
    try:
        address = socket.getaddrinfo(name, None)[0][4][0]
    except OSError as error:
        yield Finding(
            _SUBJECT,
            "host name",
            "warning",
            f"{name} has no address ({error}): on CPUs, jax.distributed fails in gloo",
            f"echo '127.0.0.1 {name}' | sudo tee -a /etc/hosts",
        )
    else:
        yield Finding(_SUBJECT, "host name", "ok", f"{name} is {address}")


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.4g} {unit}"
        count /= 1024
    raise AssertionError
