"""Handles of contexts and watchers: equal in all processes, and part of compiled programs."""

from __future__ import annotations

from collections.abc import Sequence

from jax_fabric import _core
from jax_fabric.bootstrap.exchange import Bootstrap

# For what has been published, if it ever was.
_LOOK_S = 0.05
_NOT_NEW = (
    "rejoin=True: this process has made expert-parallel contexts or watchers before: start it "
    "anew, and make its fabrics in the order in which the others made theirs"
)


class Handles:
    """Those of one fabric.

    Attributes:
      taken: how many this process has taken.
      former: how many of them the others had agreed on when this process came back.
    """

    def __init__(self, bootstrap: Bootstrap, fabric_name: str, process: int, timeout_s: float):
        """None are taken yet."""
        self._bootstrap = bootstrap
        self._fabric_name = fabric_name
        self._process = process
        self._timeout_s = timeout_s
        self.taken = 0
        self.former = 0

    def next(self, processes: Sequence[int], *, shared: bool) -> tuple[str, int]:
        """Name and handle of the next context or watcher.

        Args:
          processes: that take part now.
          shared: whether the fabric has other processes, lost ones among them.

        Raises:
          TimeoutError: another process has not come to this point.
          RuntimeError: this process comes back, and the handle stands for something else here.
        """
        name = f"{self._fabric_name}/{self.taken}"
        is_known = self.taken < self.former
        self.taken += 1
        if not shared:
            return name, _core.next_handle()
        return name, self._take(name) if is_known else self._agree(name, processes)

    def check_is_new(self) -> None:
        """Handles that the others know are free here, so that no other program has them.

        Raises:
          RuntimeError: they are not: this process was not started anew.
        """
        try:
            first = int(self._bootstrap.fetch(_key(f"{self._fabric_name}/0"), _LOOK_S))
        except TimeoutError:
            return  # they have taken none
        if _core.reserve_handles(0) > first:
            raise RuntimeError(_NOT_NEW)

    def _agree(self, name: str, processes: Sequence[int]) -> int:
        """The lowest handle that is free in every process."""
        own = _core.next_handle()
        self._bootstrap.publish(f"{name}/handle/{self._process}", str(own).encode())
        handle = max(
            int(self._bootstrap.fetch(f"{name}/handle/{process}", self._timeout_s))
            for process in processes
        )
        # For those that come back later.
        self._bootstrap.publish_first(_key(name), str(handle).encode())
        _core.reserve_handles(handle + 1)
        return handle

    def _take(self, name: str) -> int:
        """One that the others agreed on before this process came back."""
        handle = int(self._bootstrap.fetch(_key(name), self._timeout_s))
        if _core.reserve_handles(handle + 1) > handle:
            raise RuntimeError(_NOT_NEW)
        return handle


def _key(name: str) -> str:
    """Of what was agreed on for the context or watcher of this name."""
    return f"{name}/agreed_handle"
