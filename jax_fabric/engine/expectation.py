"""Immediates that are waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_fabric import _core
from jax_fabric.engine.pending import Pending

if TYPE_CHECKING:
    from jax_fabric.engine.domain_group import DomainGroup


class Expectation(Pending):
    """A number of immediates that are to come; see ``DomainGroup.expect``."""

    __slots__ = ("_group", "count", "immediate")

    def __init__(
        self,
        native: _core.Pending,
        group: DomainGroup,
        immediate: int,
        count: int,
        timeout_s: float,
    ):
        """Used by ``DomainGroup.expect``."""
        super().__init__(native, f"the expectation of immediate {immediate}", timeout_s)
        self._group = group
        self.immediate = immediate
        self.count = count

    def cancel(self) -> None:
        """Ends it with Cancelled, unless it has ended; what has come stays for the next one."""
        if not self.done():
            self._group._native.cancel_expectation(self.immediate)
