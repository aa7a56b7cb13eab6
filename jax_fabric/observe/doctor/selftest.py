"""Transfers that the doctor really makes: between two processes, over everything that is here."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from jax_fabric import engine, errors, memory
from jax_fabric.observe.doctor.finding import Finding
from jax_fabric.secret import Secret
from jax_fabric.topology import Machine, find_data_nics

NBYTES = 8 << 20
_SUBJECT = "self-test"
_ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class Route:
    """A way for a transfer.

    Attributes:
      name: for the report.
      domain: of the group, like the next two.
      provider: of libfabric.
      nics: of the writing and of the receiving process; empty: the domain's choice.
    """

    name: str
    domain: str
    provider: str | None = None
    nics: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


def selftest(machine: Machine, timeout_s: float = 30.0) -> list[Finding]:
    """Writes over every route of this machine, checks every byte, and says what could not run.

    Args:
      machine: what the topology says.
      timeout_s: for each route.
    """
    findings = [run_route(route, timeout_s) for route in routes(machine)]
    for family, what in (("efa", "EFA"), ("connectx", "ConnectX or other verbs NIC")):
        if not find_data_nics(machine, family).usable:
            findings.append(_not_run(family, f"there is no {what} with an active link"))
    gpus = "scripts/gpu_check.sh of the sources does" if machine.gpus else "there is none"
    return [*findings, _not_run("GPUs", f"the doctor moves no GPU memory; {gpus}")]


def routes(machine: Machine) -> Iterator[Route]:
    """The machine's memory, libfabric over TCP, each NIC to itself and to the next one."""
    yield Route("local", "local")
    yield Route("efa over tcp", "efa", "tcp")
    for family in ("efa", "connectx"):
        names = [nic.name for nic in find_data_nics(machine, family).usable]
        for name in names:
            yield Route(f"{family} {name}", family, None, ((name,), (name,)))
        for name, following in zip(names, names[1:], strict=False):
            nics = ((name,), (following,))
            yield Route(f"{family} {name} to {following}", family, None, nics)


def run_route(route: Route, timeout_s: float) -> Finding:
    """Writes from this process to another one."""
    try:
        with _Other(route, timeout_s) as other:
            return _write(route, other, timeout_s)
    except errors.FabricError as error:
        if route.provider == "tcp" and "libfabric" in str(error) and "apt-get" in str(error):
            return _not_run(route.name, "there is no libfabric")
        return Finding(_SUBJECT, route.name, "problem", str(error), _fix(route))
    except (OSError, ValueError, TimeoutError) as error:
        return Finding(
            _SUBJECT, route.name, "problem", f"{type(error).__name__}: {error}", _fix(route)
        )


def _write(route: Route, other: _Other, timeout_s: float) -> Finding:
    with engine.TransferEngine(timeout_s=timeout_s, secret=other.secret) as transfers:
        group = transfers.add_group(
            "doctor", domain=route.domain, provider=route.provider, nics=route.nics[0]
        )
        told = other.ask({"address": group.address().hex()})
        peer = group.add_peer(bytes.fromhex(told["address"]))
        group.wait_peers([peer])
        data = np.random.default_rng(0).integers(0, 256, NBYTES, dtype=np.uint8)
        source = group.register(data)
        seconds = []
        for kind in ("shared", "array"):
            target = memory.RemoteMemory(bytes.fromhex(told[kind]))
            for _ in range(_ROUNDS):
                begin = time.perf_counter()
                group.write(peer, source, target, immediate=told["immediate"]).wait()
                seconds.append(time.perf_counter() - begin)
            answer = other.ask({"check": kind, "rounds": _ROUNDS})
            if answer["seen"] != int(data.view(np.uint32).sum(dtype=np.uint64)):
                raise ValueError(f"what arrived in {kind} memory is not what was sent")
        rate = NBYTES / min(seconds) / 1e9
        path = group.peer_path(peer)
    value = f"{2 * _ROUNDS} x {NBYTES >> 20} MiB to another process by {path}: {rate:.2g} GB/s"
    return Finding(_SUBJECT, route.name, "ok", value)


class _Other:
    """The receiving process; every answer of it has a deadline."""

    def __init__(self, route: Route, timeout_s: float):
        self.secret = Secret.generate()
        self._timeout_s = timeout_s
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jax_fabric.observe.doctor.selftest_peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._errors: list[str] = []
        for stream, take in (
            (self._process.stdout, self._lines.put),
            (self._process.stderr, self._errors.append),
        ):
            threading.Thread(target=self._read, args=(stream, take), daemon=True).start()
        self._send(
            {
                "domain": route.domain,
                "provider": route.provider,
                "nics": route.nics[1],
                "nbytes": NBYTES,
                "timeout_s": timeout_s,
                "secret": self.secret.reveal().hex(),
            }
        )

    def _read(self, stream: Any, take: Any) -> None:
        for line in stream:
            take(line)
        if stream is self._process.stdout:
            take("")

    def _send(self, message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # what it died of is asked for below
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def ask(self, message: Any) -> Any:
        """Sends a message and waits for the answer."""
        self._send(message)
        try:
            line = self._lines.get(timeout=self._timeout_s)
        except queue.Empty:
            raise TimeoutError(f"the receiving process is silent for {self._timeout_s} s") from None
        answer = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            raise errors.FabricError(f"receiving process: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        self._process.wait(self._timeout_s)
        return "".join(self._errors).strip()[-500:] or f"ended with {self._process.returncode}"

    def __enter__(self) -> _Other:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _not_run(check: str, why: str) -> Finding:
    return Finding(_SUBJECT, check, "note", f"not run: {why}")


def _fix(route: Route) -> str:
    if route.domain == "local":
        return "see the machine's lines above; JAX_FABRIC_LOG=info says how peers are reached"
    if route.provider == "tcp":
        return "sudo apt-get install libfabric1; sudo ip link set lo up"
    return "see the NIC's lines above; ibv_devinfo, or fi_info -p efa, shows what the library sees"
