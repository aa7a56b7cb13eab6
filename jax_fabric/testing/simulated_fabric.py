"""Groups over a fabric that misbehaves, by seed and on a virtual clock."""

from __future__ import annotations

import types
from collections.abc import Callable

from jax_fabric import _core
from jax_fabric.arguments import integer, microseconds, seconds, text
from jax_fabric.engine import DomainGroup
from jax_fabric.engine.transfer_engine import close_engines_at_exit
from jax_fabric.errors import DeadlineExceeded, InvalidArgument

_MAX_NICS = 4


class SimulatedFabric:
    """A network between groups of this thread, which does what a real one may do.

    Its groups are ``jax_fabric.engine.DomainGroup``, and work as all others do: writes, pages,
    scatters, barriers, messages, expectations. Nothing has a thread, and time is virtual: it goes
    on while somebody waits (``Transfer.wait``, ``Expectation.wait``, ``wait_peers``, ``run``) from
    one event to the next. Callbacks run meanwhile, on the thread that waits; one that waits itself
    gets DeadlineExceeded. Whatever happens comes from the seed: the same program is the same run.

    As a context manager it closes at the end, and adds the seed to an exception that leaves it.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        latency_s: float = 1e-6,
        reorder_s: float = 0.0,
        bytes_per_s: float | None = None,
        segment_nbytes: int | None = None,
        loss: float = 0.0,
        retransmit_s: float = 20e-6,
        retries: int = 100,
        again: float = 0.0,
        early_completion: float = 0.0,
        handshake_loss: float = 0.0,
        lease_s: float = 1e-3,
    ):
        """Makes a network without groups.

        Args:
          seed: of everything that is drawn.
          latency_s: of a segment.
          reorder_s: up to so much later, drawn for each segment and each completion: this permutes
            writes, immediates, completions and messages.
          bytes_per_s: of each port; None: no limit.
          segment_nbytes: writes travel in such pieces, in any order; None: whole.
          loss: probability of a segment's loss; it is sent again after ``retransmit_s``.
          retransmit_s: see ``loss``.
          retries: of a segment, then the peer is lost.
          again: probability that a post is answered "full, try again", and the next four, too.
          early_completion: probability that a write ends well long before it arrives.
          handshake_loss: probability that a hello, or its answer, is lost.
          lease_s: until a peer's death is noticed that nobody writes to.

        Raises:
          InvalidArgument: names the argument, its value and what is accepted.
        """
        self.seed = integer("seed", seed)
        close_engines_at_exit()
        self._native = _core.Simulation(
            seed=self.seed,
            latency_s=seconds("latency_s", latency_s),
            reorder_s=seconds("reorder_s", reorder_s),
            bytes_per_s=0.0 if bytes_per_s is None else _above_zero("bytes_per_s", bytes_per_s),
            segment_nbytes=0
            if segment_nbytes is None
            else integer("segment_nbytes", segment_nbytes, least=1),
            loss=_probability("loss", loss),
            retransmit_s=seconds("retransmit_s", retransmit_s, above_zero=True),
            retries=integer("retries", retries, most=2**31 - 1),
            again=_probability("again", again),
            early_completion=_probability("early_completion", early_completion),
            handshake_loss=_probability("handshake_loss", handshake_loss),
            lease_s=seconds("lease_s", lease_s, above_zero=True),
        )
        self._groups: dict[DomainGroup, int] = {}
        self._alive: dict[DomainGroup, int] = {}

    def __repr__(self) -> str:
        """Seed, groups and time."""
        return (
            f"SimulatedFabric(seed={self.seed}, {len(self._alive)} groups, at {self.now_s:.6f} s)"
        )

    def add_group(
        self, name: str | None = None, *, nics: int = 1, timeout_s: float = 10.0
    ) -> DomainGroup:
        """Adds an endpoint, on an engine of its own.

        Args:
          name: for messages, here and at peers; default: a number.
          nics: 1 to 4; peers must have as many.
          timeout_s: default deadline of its waits and requests, virtual seconds.

        Raises:
          InvalidArgument: an argument is wrong.
          FabricError: it is another thread than the one that made the fabric.
        """
        number = len(self._groups)
        name = f"group {number}" if name is None else text("name", name)
        nics = integer("nics", nics, least=1, most=_MAX_NICS)
        limit_s = seconds("timeout_s", timeout_s, above_zero=True)
        group = DomainGroup(self._native.add_group(name, nics), name, limit_s)
        self._groups[group] = self._alive[group] = number
        return group

    # --- time

    @property
    def now_s(self) -> float:
        """The virtual clock."""
        return self._native.now_ns * 1e-9

    def step(self) -> None:
        """Lets every group do what it can; then time goes on to the next event, 1 ms at most."""
        self._native.step()

    def run(self, duration_s: float) -> None:
        """Lets virtual seconds go by."""
        self._native.run(microseconds(seconds("duration_s", duration_s)))

    def run_until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Steps until ``condition()`` is true.

        Raises:
          DeadlineExceeded: it is not after ``timeout_s`` virtual seconds.
        """
        end_s = self.now_s + seconds("timeout_s", timeout_s)
        while not condition():
            if self.now_s >= end_s:
                raise DeadlineExceeded(
                    f"run_until: the condition is not true after {timeout_s} virtual seconds "
                    f"(seed {self.seed})"
                )
            self.step()

    # --- what goes wrong on request

    def cut(self, a: DomainGroup, b: DomainGroup) -> None:
        """Loses what travels between two groups, until ``restore`` or the end of all retries."""
        self._native.set_link(self._number("a", a), self._number("b", b), False)

    def restore(self, a: DomainGroup, b: DomainGroup) -> None:
        """Ends ``cut``."""
        self._native.set_link(self._number("a", a), self._number("b", b), True)

    def kill(self, group: DomainGroup) -> None:
        """Ends a group as the death of its process would.

        Its own requests end with Cancelled; peers hear of it by their writes, or by ``lease_s``.
        """
        self._native.kill(self._number("group", group))
        del self._alive[group]

    def restart(self, group: DomainGroup, *, nics: int = 1) -> DomainGroup:
        """Kills a group, if it still lives, and returns a new one of the same name.

        To its peers it is a new peer with a new address.
        """
        if group in self._alive:
            self.kill(group)
        return self.add_group(group.name, nics=nics, timeout_s=group.timeout_s)

    # --- what happened

    @property
    def retransmissions(self) -> int:
        """Segments that were lost and sent again."""
        return self._native.retransmissions

    @property
    def reordered_segments(self) -> int:
        """Segments that landed out of their order within a write."""
        return self._native.reordered_segments

    # --- the end

    def close(self) -> None:
        """Ends all groups. Idempotent."""
        for group in list(self._alive):
            self.kill(group)

    def __enter__(self) -> SimulatedFabric:
        """The fabric itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        """Closes; an exception gets a note with the seed."""
        if error is not None:
            error.add_note(
                f"SimulatedFabric: seed={self.seed}, at {self.now_s:.6f} virtual seconds"
            )
        self.close()

    def _number(self, name: str, group: DomainGroup) -> int:
        if group not in self._alive:
            raise InvalidArgument(f"{name}={group!r}: not a living group of this fabric")
        return self._alive[group]


def _probability(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise InvalidArgument(f"{name}={value!r}: must be a probability, at least 0 and below 1")
    return float(value)


def _above_zero(name: str, value: float) -> float:
    if not value > 0:
        raise InvalidArgument(f"{name}={value!r}: must be above 0")
    return float(value)
