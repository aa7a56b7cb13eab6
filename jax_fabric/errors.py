"""What the engine raises.

Every error says in words what went wrong, with the argument or peer and the value; ``code``,
``peer`` and ``nic`` are there for programs.
"""

from __future__ import annotations


class FabricError(RuntimeError):
    """Any failure of the engine; the classes below are those that a program may want to tell apart.

    Attributes:
      code: of the canonical error codes, "FAILED_PRECONDITION" for example.
      peer: whom it concerns, "peer 3 'decoder-1'", where that is known.
      nic: the transport that it happened on, where that is known.
    """

    code: str = "UNKNOWN"
    peer: str | None = None
    nic: str | None = None


class InvalidArgument(FabricError, ValueError):
    """An argument is wrong, or outside of what it refers to."""

    code = "INVALID_ARGUMENT"


class DeadlineExceeded(FabricError, TimeoutError):
    """A deadline passed; names what had not come, or what was waited for."""

    code = "DEADLINE_EXCEEDED"


class PeerUnavailable(FabricError):
    """A peer is lost, was removed or cannot be reached; ``peer`` names it."""

    code = "UNAVAILABLE"


class Cancelled(FabricError):
    """Cancelled, by a call or because the engine was closed."""

    code = "CANCELLED"


class CorruptData(FabricError, ValueError):
    """Bytes from elsewhere are damaged or truncated."""

    code = "DATA_LOSS"


class InQuarantine(FabricError):
    """Memory that was taken back may still be written to, by a write that failed."""

    code = "DATA_LOSS"


_CLASSES: dict[str, type[FabricError]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "OUT_OF_RANGE": InvalidArgument,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "UNAVAILABLE": PeerUnavailable,
    "CANCELLED": Cancelled,
    "DATA_LOSS": CorruptData,
}


def from_status(code: str, message: str, peer: str | None, nic: str | None) -> FabricError:
    """The exception for an error of the extension module, which calls this."""
    error = _CLASSES.get(code, FabricError)(message)
    error.code = code
    error.peer = peer
    error.nic = nic
    return error
