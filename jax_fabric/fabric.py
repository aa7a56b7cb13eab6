"""Fabric: the engine of this process, its local devices, and the other ranks."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import time
import types
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from jax_fabric import _core, compat, primitives
from jax_fabric.arguments import MOST_WORKERS, function, instance, integer, seconds
from jax_fabric.bootstrap import (
    Bootstrap,
    agree_on_secret,
    default_bootstrap,
    fabric_name,
    membership,
)
from jax_fabric.bootstrap.handles import Handles
from jax_fabric.engine.native_callback import NativeCallback
from jax_fabric.engine.transfer_engine import TransferEngine
from jax_fabric.membership import Membership
from jax_fabric.mesh_devices import platform_of, slices
from jax_fabric.places import choose_places
from jax_fabric.secret import Secret, native_secret
from jax_fabric.watcher import ProgramWatcher

if TYPE_CHECKING:
    from jax_fabric.moe.config import ExpertParallelConfig

#: Transports notice a death at the latest so long after a peer's last sign of life.
LOSS_BY_SILENCE_S = 15.0


@dataclasses.dataclass
class _MoeContext:
    """An expert-parallel context: what it is in every epoch, and its local ranks in this one."""

    name: str
    handle: int
    config: ExpertParallelConfig
    slices: list[list[Any]]
    local: list[tuple[int, _core.MoeContext]] = dataclasses.field(default_factory=list)
    memory_bytes: int = 0


class Fabric:
    """Connects the devices of a mesh, one engine a process.

    Use it as a context manager, or call ``close()``. Every process of the mesh makes the same
    fabrics over it in the same order.

    Call ``jax.block_until_ready`` on results before you leave the ``with`` block: what is in flight
    when the fabric closes is cancelled, here and on the ranks that wait for it. Leaving the block
    without an exception waits, up to ``timeout_s``, for the arrays that still live on the mesh's
    devices, so that results that somebody holds are not lost; programs whose results were dropped
    are not waited for. ``close()`` and an exception wait for nothing.
    """

    def __init__(
        self,
        mesh: jax.sharding.Mesh,
        *,
        timeout_s: float = 30.0,
        worker_threads: int | None = None,
        bootstrap: Bootstrap | None = None,
        secret: Secret | bytes | None = None,
        force_staged: bool = False,
        rejoin: bool = False,
        domain: Literal["local", "efa", "connectx"] | None = None,
        provider: str | None = None,
        nics: Sequence[str] | Sequence[Sequence[str]] | None = None,
        node: str | None = None,
        cpus: Sequence[int] | None = None,
    ):
        """Starts the engine.

        Args:
          mesh: devices that take part; all axes and subsets of the machine's devices are fine.
          timeout_s: of every wait for another rank, seconds.
          worker_threads: that drive the local devices' transfers; default: by the number of cores.
          bootstrap: how processes find each other; default: ``jax.distributed`` where it is
            initialised.
          secret: equal in all processes: what they know each other by. Default: that of
            JAX_FABRIC_SECRET_FILE; else the first process makes one, and the others get it through
            the bootstrap (docs/security.md says when that is good enough).
          force_staged: of GPUs: messages to other ranks go through host memory, also where a GPU
            could store them into the other one's memory by itself, or NICs reach the memory of
            GPUs, which is faster. Needed with NICs and providers that do not reach it (libfabric's
            "tcp" and "shm").
          rejoin: this process was lost, has been started anew, and takes its place again: waits
            until the others call ``recover(rejoin=...)`` with its index. Then make the
            ``ExpertParallel`` objects and watchers that they have made, in the same order; each
            connects while the others recover. ``membership.step`` says where all go on.
            ``jax.distributed`` lets a process back in where all were started with
            ``jax_enable_recoverability``.
          domain: how rows travel: "local", the memory of one machine, "efa", NICs through libfabric
            (docs/nics.md), or "connectx", NICs through libibverbs (docs/connectx.md); equal in all
            processes. Default: as JAX_FABRIC_DOMAIN says, else "local".
          provider: of libfabric, for "efa": "efa" for AWS's NICs, "tcp" for development. Default:
            as JAX_FABRIC_EFA_PROVIDER says, else "efa".
          nics: of "efa" and "connectx": names of 1 to 4 NICs for every local device, or a list of
            them for each; as many in all processes. Default: as JAX_FABRIC_NICS says, else those
            nearest to the device (docs/topology.md).
          node: of GPUs that NICs write to: a name, equal in processes whose GPUs store into each
            other's memory by themselves; those of other nodes get their rows by NICs. Default: the
            machine, or the container where it has namespaces of its own. "": all rows go by NICs,
            for machines whose GPUs cannot reach each other.
          cpus: cores that the devices' workers may run on, and near which their memory is to be.
            Default: those of each GPU's NUMA node.

        Raises:
          ValueError: an argument is wrong, or differs from that of the first process; the mesh has
            devices of an unsupported platform, or none of this process.
          TimeoutError: the first process has not made this fabric within ``timeout_s``, or the
            others have not taken this one back.
          RuntimeError: the environment would let XLA deadlock; the message has the line to set.
            Or, with ``rejoin``: this process was not started anew.
          FabricError: there is no libfabric or libibverbs, or no such provider or NIC; nothing
            else is used in its place.
        """
        if not isinstance(mesh, jax.sharding.Mesh):
            raise ValueError(f"mesh={mesh!r}: must be a jax.sharding.Mesh, with its devices")
        self._platform = platform_of(mesh)
        if force_staged and self._platform != "gpu":
            raise ValueError("force_staged=True: only meshes of GPUs have a choice")
        if node is not None:
            if self._platform != "gpu":
                raise ValueError(f"node={node!r}: only meshes of GPUs have a choice")
            instance("node", node, str)
        timeout_s = seconds("timeout_s", timeout_s, above_zero=True)
        if worker_threads is not None:
            worker_threads = integer("worker_threads", worker_threads, least=1, most=MOST_WORKERS)
        if bootstrap is not None:
            instance("bootstrap", bootstrap, Bootstrap)
        self._local_devices = [
            device for device in mesh.devices.flat if device.process_index == jax.process_index()
        ]
        if not self._local_devices:
            raise ValueError(f"mesh: none of its devices belongs to process {jax.process_index()}")
        if self._platform == "cpu":
            compat.check_thread_pool(len(self._local_devices))
        self.mesh = mesh
        self.timeout_s = timeout_s
        self._processes = sorted({device.process_index for device in mesh.devices.flat})
        if rejoin and len(self._processes) == 1:
            raise ValueError("rejoin=True: all ranks live in this process; nobody has gone on")
        self._bootstrap = bootstrap or default_bootstrap(len(self._processes))
        self._name = (
            fabric_name.latest(mesh, self._bootstrap, timeout_s)
            if rejoin
            else fabric_name.following(mesh)
        )
        self._moe: list[_MoeContext] = []
        self._watch_engine: TransferEngine | None = None
        self._handles = Handles(self._bootstrap, self._name, jax.process_index(), timeout_s)
        self._membership = self._membership_of(0, self._processes, 0)
        self._closed = False
        primitives.register_targets(self._platform)
        agreed = agree_on_secret(
            self._bootstrap,
            fabric_name.secret_key(self._name),
            given=Secret.from_environment() if secret is None else secret,
            process=jax.process_index(),
            processes=self._processes,
            timeout_s=timeout_s,
            rejoin=rejoin,
        )
        if rejoin:
            self._handles.check_is_new()
            epoch, taken_back = membership.rejoin(
                self._bootstrap, f"{self._name}/epoch", jax.process_index(), timeout_s
            )
            self._membership = self._membership_of(epoch, taken_back.processes, taken_back.step)
            self._handles.former = taken_back.contexts
        self._engine = _core.Engine(
            worker_threads=worker_threads or 0, secret=native_secret(agreed)
        )
        places = choose_places(mesh, self._local_devices, domain, provider, nics, cpus)
        self._groups = {
            device.id: self._engine.add_group(
                f"process {device.process_index} device {device.id}",
                domain,
                provider,
                *place,
                cuda_device=self._ordinal(device) if self._platform == "gpu" else None,
                force_staged=force_staged,
                node=node,
            )
            for device, place in zip(self._local_devices, places, strict=True)
        }
        # Before JAX takes its backends down: that waits for programs, which may wait for ranks.
        self._close_at_exit = functools.partial(_close, weakref.ref(self))
        atexit.register(self._close_at_exit)

    def __enter__(self) -> Fabric:
        """The fabric itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        """Closes; if nothing was raised, waits for results and raises what ``check`` finds."""
        try:
            if kind is None and not self._closed:
                self._wait_for_results()
                self.check()
        finally:
            self.close()

    def _wait_for_results(self) -> None:
        """Until no living array on the local devices is being computed, ``timeout_s`` at most."""
        local_devices = set(self._local_devices)
        arrays = [
            array
            for array in jax.live_arrays(self._local_devices[0].platform)
            if not array.is_deleted() and not local_devices.isdisjoint(array.devices())
        ]
        deadline = time.monotonic() + self.timeout_s
        pause_s = 1e-4
        # Polled: it must not raise what some unrelated array has, nor hang with it.
        while arrays and time.monotonic() < deadline:
            array = arrays[-1]
            if array.is_deleted() or array.is_ready():
                arrays.pop()
                continue
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.01)

    def check(self) -> None:
        """Raises the first error of any context.

        On GPUs also, once, that a ``done`` had no ``start``, or came twice: its results are NaN,
        and nothing else is affected.

        Raises:
          RuntimeError: names operation, rank and peer. What was computed since is not to be
            trusted.
        """
        error = self._engine.first_error() or self._engine.take_refusal()
        if error is not None:
            raise RuntimeError(error)

    def close(self) -> None:
        """Ends everything in flight with an error and frees the engine's memory.

        Local, bounded and idempotent: it does not wait for other ranks.

        Raises:
          DeadlineExceeded: the callback of a watcher has not returned within 10 s.
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        limit_s = min(self.timeout_s, 10.0)
        self._engine.close(timeout_us=int(limit_s * 1e6))
        if self._watch_engine is not None:
            self._watch_engine.close(limit_s)

    @property
    def platform(self) -> str:
        """Of the mesh's devices: "cpu" or "gpu"."""
        return self._platform

    @property
    def membership(self) -> Membership:
        """Who takes part: all at first, and after ``recover`` those that are left or are back."""
        return self._membership

    def recover(
        self, *, step: int = 0, rejoin: Collection[int] = (), timeout_s: float | None = None
    ) -> Membership:
        """Goes on without the processes that were lost; collective over those that are left.

        Call it in every surviving process after a call (on GPUs: ``check()``) has raised the loss
        of a rank, once all that this process has running has ended. Where that is not known to be
        lost yet, it waits for it until it is. The survivors agree on who they
        are; all contexts of the fabric begin anew among them, with memory that a late write of a
        lost process cannot reach. Compiled programs stay as they are: experts of lost ranks count
        as ids outside [0, E), and their rows of results come from nobody. Programs must not have
        collectives of XLA, which would wait for the lost processes. ``jax.distributed`` itself ends
        all processes some time after one has died, unless ``jax_enable_recoverability`` is set, and
        when the process with index 0 dies.

        With ``rejoin`` it also takes processes back that were lost, now or long ago, and make their
        fabric with ``rejoin=True``: in the new membership they have their ranks and experts again.
        Those that do not come in time stay out. All survivors call it with the same ones, between
        the same steps: nobody is told otherwise that a process has come.

        Args:
          step: where this process is in its work. Survivors may be a step apart: those that had
            heard from the lost rank when it died, and those that had not.
          rejoin: indices of processes to take back.
          timeout_s: how long to wait for survivors and those that come back, seconds; default:
            twice the fabric's.

        Returns:
          The new membership, whose ``step`` is the smallest of all.

        Raises:
          ValueError: ``rejoin`` has a process that is not one of the mesh's others.
          RuntimeError: the mesh has one process; or the others have gone on without this one.
          TimeoutError: another process was lost meanwhile: call it again.
        """
        if self._closed:
            raise RuntimeError("this fabric was closed; make a new one")
        if len(self._processes) == 1:
            raise RuntimeError("recover: all ranks live in this process; there is nobody to lose")
        if strange := set(rejoin) - (set(self._processes) - {jax.process_index()}):
            raise ValueError(
                f"rejoin={sorted(rejoin)}: {sorted(strange)} not among the other processes of the "
                f"mesh, {sorted(set(self._processes) - {jax.process_index()})}"
            )
        # A survivor may learn of the loss by the deadline of its call only.
        timeout_s = 2 * self.timeout_s if timeout_s is None else timeout_s
        epoch = self._membership.epoch + 1
        # Also where it fails: the others count the attempt, too.
        self._membership = dataclasses.replace(self._membership, epoch=epoch)
        agreed = membership.agree(
            self._bootstrap,
            f"{self._name}/epoch/{epoch}",
            jax.process_index(),
            set(self._membership.processes) - self.lost_processes() - set(rejoin),
            step,
            timeout_s,
            rejoin=rejoin,
            contexts=self._handles.taken,
            lost=lambda: self.lost_processes() - set(rejoin),
        )
        self._membership = self._membership_of(epoch, agreed.processes, agreed.step)
        for context in self._moe:
            context.local.clear()
            self._engine.close_moe_contexts(context.handle, timeout_us=int(timeout_s * 1e6))
            self._connect(context, timeout_s)
        return self._membership

    def _membership_of(self, epoch: int, processes: Sequence[int], step: int) -> Membership:
        present = np.vectorize(lambda device: device.process_index in processes)(self.mesh.devices)
        present.setflags(write=False)
        return Membership(epoch, tuple(processes), present, step)

    def wait_for_loss(self, timeout_s: float) -> bool:
        """Waits until this process has noticed the loss of another one.

        A NIC may fail to write to a peer before anybody knows whether that has died or is out of
        reach for a moment.

        Args:
          timeout_s: how long to wait, seconds.

        Returns:
          Whether it has.
        """
        deadline = time.monotonic() + seconds("timeout_s", timeout_s)
        while not self.lost_processes():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True

    def lost_processes(self) -> set[int]:
        """Indices of processes whose loss this one has noticed, and not recovered from."""
        return {
            context.slices[number][rank].process_index
            for context in self._moe
            for number, native in context.local
            for rank in native.lost_ranks()
        }

    def watcher(
        self, callback: Callable[[int, int], None] | NativeCallback, *, initial: int = 0
    ) -> ProgramWatcher:
        """Watches what programs on the fabric's devices say by ``jax_fabric.bump``; collective.

        All processes make the same watchers and expert-parallel contexts, in the same order.

        Args:
          callback: ``callback(old, new)`` when the word of a local device has changed; values in
            between may be skipped. It runs on a thread for all watchers of the fabric, up to 50 us
            after the store if nothing has happened for a second or other threads want the core;
            what it raises goes to ``sys.unraisablehook``. It must not close the fabric. A
            ``NativeCallback`` runs there without the GIL.
          initial: value of the words.

        Raises:
          InvalidArgument: an argument is wrong.
          RuntimeError: the fabric is closed.
        """
        if self._closed:
            raise RuntimeError("this fabric was closed; make a new one")
        function("callback", callback)
        integer("initial", initial)
        _, handle = self._next_handle()
        if self._watch_engine is None:
            self._watch_engine = TransferEngine(worker_threads=1)
        return ProgramWatcher(
            handle,
            [
                self._watch_engine.watch_programs(
                    callback,
                    initial=initial,
                    handle=handle,
                    ordinal=self._ordinal(device),
                    cuda_device=self._ordinal(device) if self._platform == "gpu" else None,
                )
                for device in self._local_devices
            ],
        )

    def open_moe_context(self, config: ExpertParallelConfig, axis_name: str) -> int:
        """Makes the local ranks of an expert-parallel context and connects them; collective.

        Args:
          config: equal on all ranks.
          axis_name: of the mesh.

        Returns:
          Handle of the context: equal in all processes, part of compiled programs.
        """
        if self._closed:
            raise RuntimeError("this fabric was closed; make a new one")
        name, handle = self._next_handle()
        context = _MoeContext(name, handle, config, slices(self.mesh, axis_name))
        self._connect(context, self.timeout_s)
        self._moe.append(context)
        return handle

    def moe_memory_bytes(self, handle: int) -> int:
        """Engine-owned memory of a local rank of an expert-parallel context, bytes."""
        (found,) = (context for context in self._moe if context.handle == handle)
        return found.memory_bytes

    def _connect(self, context: _MoeContext, timeout_s: float) -> None:
        """Makes the context's local ranks for the present membership, and connects them."""
        epoch = self._membership.epoch
        processes = set(self._membership.processes)
        name = f"{context.name}/{epoch}"

        def there(device: Any) -> bool:
            return device.process_index in processes

        for number, devices in enumerate(context.slices):
            absent = [] if all(map(there, devices)) else [not there(each) for each in devices]
            for rank, device in enumerate(devices):
                if device.id not in self._groups:
                    continue
                native = self._engine.add_moe_context(
                    self._groups[device.id],
                    context.config.native(rank, membership_epoch=epoch, absent=absent),
                    context.handle,
                    self._ordinal(device),
                )
                self._bootstrap.publish(f"{name}/{number}/{rank}", native.introduction())
                context.local.append((number, native))
        introductions = {
            number: [
                self._bootstrap.fetch(f"{name}/{number}/{rank}", timeout_s)
                if there(device)
                else b""
                for rank, device in enumerate(context.slices[number])
            ]
            for number in {number for number, _ in context.local}
        }
        for number, native in context.local:
            native.connect(introductions[number], timeout_us=int(timeout_s * 1e6))
        context.memory_bytes = max(native.memory_bytes for _, native in context.local)
        self._barrier(name, timeout_s)

    def _ordinal(self, device: Any) -> int:
        """How XLA tells a custom call which device it runs on."""
        return device.id if self._platform == "cpu" else device.local_hardware_id

    def _next_handle(self) -> tuple[str, int]:
        """Name and handle of the next context or watcher."""
        return self._handles.next(self._membership.processes, shared=len(self._processes) > 1)

    def _barrier(self, name: str, timeout_s: float) -> None:
        """No rank may send before every rank is connected."""
        processes = self._membership.processes
        if len(processes) == 1:
            return
        self._bootstrap.publish(f"{name}/connected/{jax.process_index()}", b"1")
        for process in processes:
            self._bootstrap.fetch(f"{name}/connected/{process}", timeout_s)


def _close(fabric: weakref.ref[Fabric]) -> None:
    """Closes a fabric that nobody has closed by the end of the program."""
    if (found := fabric()) is not None:
        found.close()
