"""Who may use registered memory."""

from __future__ import annotations

import enum


class Access(enum.Enum):
    """Who may use registered memory."""

    LOCAL = "local"
    """This process: a source of its writes."""
    REMOTE_WRITE = "remote_write"
    """Peers that have the descriptor may write; it may be a source as well."""
