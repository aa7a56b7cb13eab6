"""A scatter that is posted again and again."""

from __future__ import annotations

from jax_fabric import _core
from jax_fabric.arguments import integer, microseconds, seconds
from jax_fabric.engine.pending import Pending
from jax_fabric.engine.write_grant import WriteGrant, native_grant


class PreparedScatter:
    """A scatter that was planned once; see ``DomainGroup.prepare_scatter``. One post at a time."""

    __slots__ = ("__weakref__", "_entries", "_native", "_timeout_s")

    def __init__(self, native: _core.PreparedScatter, entries: int, timeout_s: float):
        """Used by ``DomainGroup.prepare_scatter``."""
        self._native = native
        self._entries = entries
        self._timeout_s = timeout_s

    def set_nbytes(self, entry: int, nbytes: int) -> None:
        """Changes how many bytes an entry writes from the next post on.

        Args:
          entry: its place in the list.
          nbytes: at most what the entry declared as ``max_nbytes`` (the post says so).

        Raises:
          InvalidArgument: there is no such entry.
          FabricError: a post has not ended, or is in flight after its deadline.
        """
        self._native.set_nbytes(
            integer("entry", entry, most=self._entries - 1), integer("nbytes", nbytes)
        )

    def post(self, *, timeout_s: float | None = None, grant: WriteGrant | None = None) -> Pending:
        """Writes all entries.

        Args:
          timeout_s: by when it has ended; default: the group's.
          grant: as of ``DomainGroup.scatter``; each post may have another one.

        Raises:
          InvalidArgument: an entry is longer than it declared, or does not fit the grant.
          FabricError: the post before has not ended, or the engine is closed.
        """
        limit_s = self._timeout_s if timeout_s is None else seconds("timeout_s", timeout_s)
        native = self._native.post(microseconds(limit_s), native_grant(grant))
        return Pending(native, "the scatter", limit_s)
