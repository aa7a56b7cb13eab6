"""Several "hosts" on this machine: network namespaces with addresses and links of their own."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence

_COMMAND_S = 20.0
_START_S = 10.0


@functools.cache
def missing() -> str:
    """Why there can be no hosts here; empty: there can."""
    for command in ("ip", "unshare", "nsenter"):
        if shutil.which(command) is None:
            return f"there is no {command} (apt-get install iproute2 util-linux)"
    try:
        with Hosts(1):
            return ""
    except (subprocess.SubprocessError, TimeoutError, OSError) as error:
        output = getattr(error, "stderr", "") or ""
        return f"namespaces, links or bridges are not permitted: {error} {output}".strip()


class Hosts:
    """Hosts with eth0 on one network and, with ``links=2``, eth1 on another one.

    Each has namespaces of its own for network, mounts (with its own /dev/shm), System V memory and
    host name, and knows the others by name; other files are shared. They end with this process,
    whatever it dies of.

    Attributes:
      prefixes: of commands, for each host: runs what follows there.
    """

    def __init__(self, count: int, links: int = 1):
        self._count = count
        self._links = links
        self._stack = contextlib.ExitStack()
        self.prefixes: list[list[str]] = []

    def address(self, host: int, link: int = 0) -> str:
        return f"10.{77 + link}.0.{host + 1}"

    def __enter__(self) -> Hosts:
        with contextlib.ExitStack() as stack:
            self._names = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix="_hosts"))
            names = [f"{self.address(host)} host{host}\n" for host in range(self._count)]
            self._names.write("".join(["127.0.0.1 localhost\n", *names]))
            self._names.flush()
            switch = _holder(stack)
            for link in range(self._links):
                _run(switch, "ip", "link", "add", "name", f"br{link}", "type", "bridge")
                _run(switch, "ip", "link", "set", f"br{link}", "up")
            for host in range(self._count):
                self._add(stack, switch, host)
            self._stack = stack.pop_all()
        return self

    def _add(self, stack: contextlib.ExitStack, switch: Sequence[str], host: int) -> None:
        prefix = _holder(stack)
        pid = prefix[1].partition("=")[2]
        self.prefixes.append(prefix)
        _run(prefix, "hostname", f"host{host}")
        _run(prefix, "mount", "--bind", self._names.name, "/etc/hosts")
        _run(prefix, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
        _run(prefix, "ip", "link", "set", "lo", "up")
        for link in range(self._links):
            port, interface = f"host{host}-{link}", f"eth{link}"
            _run(
                switch,
                *("ip", "link", "add", "name", port, "type", "veth"),
                *("peer", "name", interface, "netns", pid),
            )
            _run(switch, "ip", "link", "set", port, "master", f"br{link}", "up")
            address = f"{self.address(host, link)}/24"
            _run(prefix, "ip", "addr", "add", address, "dev", interface)
            _run(prefix, "ip", "link", "set", interface, "up")

    def set_link(self, host: int, state: str, link: int = 0) -> None:
        """Cuts a host's link ("down"), or restores it ("up")."""
        _run(self.prefixes[host], "ip", "link", "set", f"eth{link}", state)

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _holder(stack: contextlib.ExitStack) -> list[str]:
    """Starts a process that keeps new namespaces until our end of its pipe closes."""
    process = subprocess.Popen(
        ["unshare", "--net", "--mount", "--ipc", "--uts", "cat"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stack.callback(process.wait, _START_S)
    stack.callback(process.stderr.close)
    stack.callback(process.stdin.close)
    deadline = time.monotonic() + _START_S
    own = os.readlink("/proc/self/ns/mnt")
    # The mounts come last.
    while (code := process.poll()) is None and _namespace(process.pid) in (own, ""):
        if time.monotonic() > deadline:
            raise TimeoutError(f"unshare does not begin within {_START_S} s")
        time.sleep(0.01)
    if code is not None:
        raise subprocess.CalledProcessError(code, "unshare", stderr=process.stderr.read())
    kinds = ("--net", "--mount", "--ipc", "--uts")
    return ["nsenter", f"--target={process.pid}", *kinds, f"--wd={os.getcwd()}"]


def _namespace(pid: int) -> str:
    try:
        # cat is there when unshare has done all of its work.
        with open(f"/proc/{pid}/comm") as name:
            return os.readlink(f"/proc/{pid}/ns/mnt") if name.read().strip() == "cat" else ""
    except OSError:
        return ""


def _run(prefix: Sequence[str], *command: str) -> None:
    subprocess.run(
        [*prefix, *command], check=True, capture_output=True, text=True, timeout=_COMMAND_S
    )
