"""What a process has of the fabric."""

from __future__ import annotations

import atexit
import functools
import itertools
import types
from collections.abc import Callable, Sequence
from typing import Literal

from jax_fabric import _core
from jax_fabric.arguments import MOST_WORKERS, function, integer, microseconds, seconds, text
from jax_fabric.engine.domain_group import DomainGroup
from jax_fabric.engine.native_callback import NativeCallback, native_function
from jax_fabric.engine.watcher import Watcher
from jax_fabric.secret import Secret, native_secret
from jax_fabric.topology import NicSelection

_CLOSE_TIMEOUT_S = 10.0
_EXIT_TIMEOUT_S = 5.0

_numbers = itertools.count()


class TransferEngine:
    """Groups, the threads that drive them, callbacks and watchers.

    Use it as a context manager, or call ``close``. One a process is usual, any number is fine. A
    forked child must not use its parent's engine, and gets an error that says so.

    ``jax_fabric.Fabric`` has an engine of its own; this one is for host code.
    """

    def __init__(
        self,
        *,
        worker_threads: int | None = None,
        timeout_s: float = 30.0,
        secret: Secret | bytes | None = None,
    ):
        """Starts the engine.

        Args:
          worker_threads: that drive the groups; default: as JAX_FABRIC_WORKERS says, else by the
            number of cores.
          timeout_s: default deadline of its groups.
          secret: that all engines that talk to this one were given, too: peers and messages are
            authenticated with it. Default: that of JAX_FABRIC_SECRET_FILE; without one everybody
            who reaches this engine is believed (on one machine: processes of the same user).

        Raises:
          InvalidArgument: an argument or an environment variable is wrong.
          FabricError: the machine has no thread left; the file of the secret is not to be trusted.
        """
        self.timeout_s = seconds("timeout_s", timeout_s, above_zero=True)
        threads = 0
        if worker_threads is not None:
            threads = integer("worker_threads", worker_threads, least=1, most=MOST_WORKERS)
        if secret is None:
            secret = Secret.from_environment()
        close_engines_at_exit()
        self._native = _core.TransferEngine(threads, native_secret(secret))

    def add_group(
        self,
        name: str | None = None,
        *,
        timeout_s: float | None = None,
        domain: Literal["local", "efa", "connectx"] | None = None,
        provider: str | None = None,
        nics: Sequence[str] = (),
        cpus: Sequence[int] = (),
    ) -> DomainGroup:
        """Adds an endpoint; its peers have the same transport and as many NICs.

        Args:
          name: for messages, here and at peers; default: a number.
          timeout_s: default deadline of its waits and requests; default: the engine's.
          domain: "local", the memory of this machine, "efa", a NIC through libfabric
            (docs/nics.md), or "connectx", a NIC through libibverbs (docs/connectx.md). Default: as
            JAX_FABRIC_DOMAIN says, else "local".
          provider: of libfabric, for "efa": "efa" for AWS's NICs, "tcp" for development. Default:
            as JAX_FABRIC_EFA_PROVIDER says, else "efa".
          nics: of "efa" and "connectx": names of 1 to 4 NICs, as in /sys/class/infiniband; for the
            provider "tcp" of network interfaces. The first one talks to the peers' first ones, and
            so on; ``jax_fabric.topology`` says which are near a GPU. Default: as JAX_FABRIC_NICS
            says where that names the same for all devices, else the first one that works.
          cpus: cores that the group's worker may run on, and near which its memory is to be: those
            of the NIC's NUMA node. Default: any. A worker that drives another group already stays
            where it is.

        Raises:
          Cancelled: the engine is closed.
          InvalidArgument: an argument is wrong.
          FabricError: the machine has no memory or file descriptor left; there is no libfabric or
            libibverbs, or no such provider or NIC: nothing else is used in its place.
        """
        name = f"group {next(_numbers)}" if name is None else text("name", name)
        limit_s = (
            self.timeout_s
            if timeout_s is None
            else seconds("timeout_s", timeout_s, above_zero=True)
        )
        names = NicSelection.make(nics).of_device(0, 1) if nics else ()
        cores = [integer("cpus", cpu) for cpu in cpus]
        native = self._native.add_group(name, domain, provider, names, cores)
        return DomainGroup(native, name, limit_s)

    def watch(
        self, callback: Callable[[int, int], None] | NativeCallback, *, initial: int = 0
    ) -> Watcher:
        """Watches a new 64-bit word.

        Args:
          callback: ``callback(old, new)`` on the engine's watcher thread, when the word has
            changed; values in between may be skipped. What it raises goes to
            ``sys.unraisablehook``. A ``NativeCallback`` runs there without the GIL.
          initial: value of the word.

        Raises:
          Cancelled: the engine is closed.
        """
        function("callback", callback)
        value = integer("initial", initial)
        return Watcher(self._native.watch(value, callback, *native_function(callback)))

    def watch_programs(
        self,
        callback: Callable[[int, int], None] | NativeCallback,
        *,
        initial: int,
        handle: int,
        ordinal: int,
        cuda_device: int | None,
    ) -> Watcher:
        """As ``watch``, of a word that programs on one device raise; ``Fabric.watcher`` uses it.

        Args:
          callback: as of ``watch``, like ``initial``.
          initial: value of the word.
          handle: by which programs know it.
          ordinal: how XLA numbers the device.
          cuda_device: how CUDA numbers it; None on the CPU.
        """
        function("callback", callback)
        value = integer("initial", initial)
        return Watcher(
            _core.watch_programs(
                self._native,
                value,
                callback,
                *native_function(callback),
                handle,
                ordinal,
                cuda_device,
            )
        )

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Ends everything outstanding with Cancelled, and the engine's threads.

        Local, bounded and idempotent: it does not wait for peers. At the exit of the program every
        engine is closed.

        Raises:
          DeadlineExceeded: a callback has not returned by then, or memory was still being written;
            may be called again.
          FabricError: it was called by a callback, which the engine would wait for.
        """
        self._native.close(microseconds(seconds("timeout_s", timeout_s)))

    def __enter__(self) -> TransferEngine:
        """The engine itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        """Closes."""
        self.close()


@functools.cache
def close_engines_at_exit() -> None:
    """While the interpreter still runs: an engine's thread must not enter one that is gone."""
    atexit.register(_core.close_engines, microseconds(_EXIT_TIMEOUT_S))
