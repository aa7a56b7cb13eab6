"""The two sides of the transfer benchmark: this process measures, another one is written to."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing import shared_memory
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import numpy as np

from jax_fabric import _core, engine, memory
from jax_fabric.arguments import microseconds
from jax_fabric.bench.transfer_config import WINDOW, TransferBenchConfig

_START_S = 120.0
_WORD_NBYTES = 64


class Side:
    """A group with memory that the other side writes to, and two immediates."""

    def __init__(self, fabric: engine.TransferEngine, name: str, config: TransferBenchConfig):
        """Allocates and touches the memory."""
        self.group = fabric.add_group(name)
        self.region = self.group.register(
            memory.allocate(config.memory_bytes), memory.Access.REMOTE_WRITE
        )
        self.region.array[:] = 1
        self.arrived = self.group.allocate_immediates(1)[0]
        self.timeout_s = config.timeout_s

    def introduction(self) -> tuple[bytes, memory.RemoteMemory, int]:
        """What the other side needs."""
        return self.group.address(), self.region.descriptor, self.arrived

    def meet(self, introduction: tuple[bytes, memory.RemoteMemory, int]) -> None:
        """Connects to the other side."""
        address, self.target, self.immediate = introduction
        self.peer = self.group.add_peer(address)
        self.group.wait_peers([self.peer])

    def bounce(self, nbytes: int, rounds: int, *, first: bool) -> list[int]:
        """Nanoseconds of round trips of writes, from worker to worker."""
        return _core.bounce_writes(
            self.group._native,
            self.peer.handle,
            self.region._native,
            self.target._native,
            nbytes,
            self.arrived,
            self.immediate,
            first,
            rounds,
            microseconds(self.timeout_s),
        )

    def bounce_from_python(self, nbytes: int, rounds: int, *, first: bool) -> list[int]:
        """The same with Python between."""
        trips = []
        for _ in range(rounds):
            begin = time.perf_counter_ns()
            if first:
                self._answer(nbytes)
            self.group.expect(self.arrived).wait()
            if not first:
                self._answer(nbytes)
            trips.append(time.perf_counter_ns() - begin)
        return trips

    def _answer(self, nbytes: int) -> None:
        self.group.write(
            self.peer, self.region, self.target, nbytes=nbytes, immediate=self.immediate
        )


class Word:
    """A word that both processes see, without any library between."""

    def __init__(self, side: Side, name: str | None):
        """Makes it, or finds the one with a name."""
        self._memory = shared_memory.SharedMemory(name, create=name is None, size=_WORD_NBYTES)
        self._owner = name is None
        self.name = self._memory.name
        self._array = np.frombuffer(self._memory.buf, np.uint64)
        self._region = side.group.register(self._array)
        self._timeout_s = side.timeout_s

    def reset(self) -> None:
        """Before both sides bounce it."""
        self._array[0] = 0

    def bounce(self, rounds: int, *, first: bool) -> list[int]:
        """Nanoseconds of round trips."""
        return _core.bounce_word(self._region._native, first, rounds, microseconds(self._timeout_s))

    def close(self) -> None:
        """Unmaps it."""
        self._region.close()
        del self._array
        self._memory.close()
        if self._owner:
            self._memory.unlink()


def other_side(pipe: Connection, config: TransferBenchConfig) -> None:
    """The other process: does what it is asked for, until the pipe ends."""
    with engine.TransferEngine(timeout_s=config.timeout_s) as fabric:
        side = Side(fabric, "target", config)
        pipe.send(side.introduction())
        introduction, word_name = pipe.recv()
        side.meet(introduction)
        word = Word(side, word_name)
        try:
            while True:
                kind, *arguments = pipe.recv()
                pipe.send("ready")
                if kind == "expect":
                    side.group.expect(side.arrived, *arguments).wait()
                    pipe.send("all")
                elif kind == "read":
                    offset, nbytes = arguments
                    pipe.send(side.region.array[offset : offset + nbytes].tobytes())
                elif kind == "word":
                    word.bounce(*arguments, first=False)
                elif kind == "bounce":
                    side.bounce(*arguments, first=False)
                elif kind == "bounce_from_python":
                    side.bounce_from_python(*arguments, first=False)
        except EOFError:
            word.close()


class Measured:
    """This process's side, and the other process."""

    def __init__(self, config: TransferBenchConfig):
        """Starts the other process and connects.

        Raises:
          TimeoutError: it did not come up.
        """
        context = multiprocessing.get_context("spawn")
        self._pipe, other_end = context.Pipe()
        self._process = context.Process(target=other_side, args=(other_end, config), daemon=True)
        self._process.start()
        other_end.close()
        self._fabric = engine.TransferEngine(timeout_s=config.timeout_s)
        self._side = Side(self._fabric, "initiator", config)
        self._word = Word(self._side, None)
        self._timeout_s = config.timeout_s
        introduction = self._answer(_START_S)
        self._pipe.send((self._side.introduction(), self._word.name))
        self._side.meet(introduction)
        self._source = memory.allocate(config.memory_bytes)
        self._copy = memory.allocate(config.memory_bytes)
        self._source[:] = 1
        self._copy[:] = 2

    def __enter__(self) -> Measured:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the other process."""
        self._pipe.close()
        self._process.join(self._timeout_s if kind is None else 0)
        self._process.kill()
        self._word.close()
        self._fabric.close()

    def check_pages(self, nbytes: int, order: np.ndarray) -> None:
        """Pages arrive where they should.

        Raises:
          RuntimeError: they did not.
        """
        total = nbytes * len(order)
        data = np.random.default_rng(len(order)).integers(0, 256, total, np.uint8)
        self._side.region.array[:total] = data
        self.pages_s(nbytes, order, 1)
        self._ask("read", 0, total)
        found = np.frombuffer(self._answer(), np.uint8).reshape(len(order), nbytes)
        if not np.array_equal(found[order], data.reshape(len(order), nbytes)):
            raise RuntimeError(f"paged write of {len(order)} pages of {nbytes} bytes: wrong bytes")

    def writes_s(self, nbytes: int, count: int) -> float:
        """Seconds for `count` writes, four at a time."""
        side, places = self._side, len(self._source) // nbytes
        self._ask("expect", count * side.group.write_immediates(side.peer, nbytes))
        under_way: list[engine.Transfer] = []
        begin = time.perf_counter()
        for i in range(count):
            if len(under_way) == WINDOW:
                under_way.pop(0).wait()
            offset = i % places * nbytes
            under_way.append(
                side.group.write(
                    side.peer,
                    side.region,
                    side.target,
                    source_offset=offset,
                    target_offset=offset,
                    nbytes=nbytes,
                    immediate=side.immediate,
                )
            )
        for transfer in under_way:
            transfer.wait()
        seconds = time.perf_counter() - begin
        self._answer()
        return seconds

    def copies_s(self, nbytes: int, count: int, *, in_place: bool = False) -> float:
        """Seconds for memcpy between two shared mappings: of `count` ranges, or of one again."""
        places = 1 if in_place else len(self._source) // nbytes
        begin = time.perf_counter()
        for i in range(count):
            at = i % places * nbytes
            np.copyto(self._copy[at : at + nbytes], self._source[at : at + nbytes])
        return time.perf_counter() - begin

    def pages_s(self, nbytes: int, order: np.ndarray, count: int) -> float:
        """Seconds for `count` batches of pages, page i to place order[i]."""
        side = self._side
        self._ask("expect", count * len(order))
        sources = np.arange(len(order))
        begin = time.perf_counter()
        for _ in range(count):
            side.group.write_pages(
                side.peer,
                side.region,
                sources,
                side.target,
                order,
                page_nbytes=nbytes,
                immediate=side.immediate,
            ).wait()
        seconds = time.perf_counter() - begin
        self._answer()
        return seconds

    def word_round_trips_s(self, rounds: int) -> list[float]:
        """Of a shared word between two spinning processes."""
        self._word.reset()
        self._ask("word", rounds)
        return _seconds(self._word.bounce(rounds, first=True))

    def round_trips_s(self, nbytes: int, rounds: int) -> list[float]:
        """Of a write and its answer, from worker to worker."""
        self._ask("bounce", nbytes, rounds)
        return _seconds(self._side.bounce(nbytes, rounds, first=True))

    def round_trips_from_python_s(self, nbytes: int, rounds: int) -> list[float]:
        """Of a write and its answer, from Python to Python."""
        self._ask("bounce_from_python", nbytes, rounds)
        return _seconds(self._side.bounce_from_python(nbytes, rounds, first=True))

    def submit_s(self, rounds: int) -> tuple[list[float], list[float]]:
        """Of the call that submits a write, and until the worker has posted it and it has ended."""
        call, posted = _core.measure_submit(
            self._side.group._native,
            self._side.peer.handle,
            self._side.target._native,
            rounds,
            microseconds(self._timeout_s),
        )
        return _seconds(call), _seconds(posted)

    def _ask(self, *request: Any) -> None:
        self._pipe.send(request)
        self._answer()

    def _answer(self, timeout_s: float | None = None) -> Any:
        if not self._pipe.poll(timeout_s or self._timeout_s):
            raise TimeoutError("transfer benchmark: the other process does not answer")
        return self._pipe.recv()


def _seconds(nanoseconds: Sequence[int]) -> list[float]:
    return [each * 1e-9 for each in nanoseconds]
