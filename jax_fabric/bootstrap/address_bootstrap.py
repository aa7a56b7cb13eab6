"""Exchange of blobs through a process whose address all know."""

from __future__ import annotations

import socket
import time
import types

from jax_fabric.arguments import integer, seconds, text
from jax_fabric.bootstrap import board_protocol as protocol
from jax_fabric.bootstrap.board import Board
from jax_fabric.bootstrap.exchange import Bootstrap
from jax_fabric.errors import InvalidArgument
from jax_fabric.secret import Secret

_PART_S = 0.5  # of a wait: Python notices Ctrl-C between them, and a board that is gone
_PAUSE_S = 0.1
_ANSWER_S = 10.0


class AddressBootstrap(Bootstrap):
    """One process keeps a board at an address; the others know that address.

    Use it as a context manager, or call ``close``. The process with the board keeps it open until
    the others need it no more. Frames carry tags of the secret, so that nobody else reads or writes
    the board; they are not encrypted, so give the fabric the same secret (``secret=``), of which
    then only a fingerprint travels.

    Attributes:
      address: "host:port" of the board.
    """

    def __init__(
        self, address: str, *, secret: Secret | bytes, keep: bool, timeout_s: float = 30.0
    ):
        """Opens the board, or remembers where it is: it may be opened later.

        Args:
          address: "10.0.0.5:7000" or "[fd00::5]:7000". Port 0, with ``keep``: any free one, which
            the attribute has.
          secret: equal in all processes.
          keep: whether this is the process with the board.
          timeout_s: how long to wait for the board where a call does not say, seconds.

        Raises:
          InvalidArgument: the address makes no sense.
          OSError: it is not an address of this machine, or is taken.
        """
        host, port = _parse(address)
        given = secret if isinstance(secret, Secret) else Secret(secret)
        # The board's key is its own: the engine's tags say nothing here, and the other way round.
        self._secret = protocol.tag(given.reveal(), b"secret")
        self._timeout_s = seconds("timeout_s", timeout_s, above_zero=True)
        self._board = Board(host, port, self._secret) if keep else None
        if port == 0 and self._board is None:
            raise InvalidArgument(f"address={address!r}: port 0 is for the process with the board")
        self._host, self._port = host, self._board.port if self._board else port
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._port}"

    def publish(self, key: str, blob: bytes) -> None:
        """See Bootstrap."""
        status, _ = self._ask(protocol.PUBLISH, key, blob, self._timeout_s)
        if status == protocol.EXISTS:
            raise RuntimeError(f"bootstrap: {key!r} was published before at {self.address}")

    def publish_first(self, key: str, blob: bytes) -> bytes:
        """See Bootstrap."""
        return self._ask(protocol.PUBLISH_FIRST, key, blob, self._timeout_s)[1]

    def fetch(self, key: str, timeout_s: float) -> bytes:
        """See Bootstrap."""
        status, blob = self._ask(protocol.FETCH, key, b"", timeout_s)
        if status == protocol.OK:
            return blob
        raise TimeoutError(
            f"bootstrap: {key!r} was not published within {timeout_s} s at {self.address}: is that "
            f"process alive?"
        )

    def close(self) -> None:
        """Closes the board, where this process keeps it; idempotent."""
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> AddressBootstrap:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        """Closes."""
        self.close()

    def _ask(self, operation: int, key: str, blob: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Status and blob of the answer; asks until the deadline.

        Raises:
          TimeoutError: no board answers there, or none with this secret.
        """
        name = text("key", key).encode()
        for what, value, most in (
            ("key", name, protocol.MOST_KEY_BYTES),
            ("blob", blob, protocol.MOST_BLOB_BYTES),
        ):
            if len(value) > most:
                raise InvalidArgument(f"{what}: {len(value)} bytes; at most {most}")
        deadline = time.monotonic() + timeout_s
        cause: Exception | None = None
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            request = protocol.Request(operation, name, blob, int(min(_PART_S, left_s) * 1e3))
            try:
                status, answer = self._once(request, max(0.05, min(_ANSWER_S, left_s + _PART_S)))
                if status != protocol.ABSENT or left_s == 0:
                    return status, answer
                cause = None
            except (OSError, protocol.FrameError) as error:
                cause = error
                if left_s == 0:
                    break
                time.sleep(min(_PAUSE_S, left_s))
        raise TimeoutError(
            f"bootstrap: no board with this secret answered at {self.address} within {timeout_s} "
            f"s ({cause or 'it was silent'}): is the process there that keeps it (keep=True), can "
            f"that address be reached from here, and is secret= the same?"
        )

    def _once(self, request: protocol.Request, limit_s: float) -> tuple[int, bytes]:
        with socket.create_connection((self._host, self._port), timeout=limit_s) as connection:
            nonce = protocol.read_exactly(connection, protocol.NONCE_BYTES)
            packed = request.pack()
            connection.sendall(packed + protocol.tag(self._secret, b"request", nonce, packed))
            return protocol.read_reply(connection, self._secret, nonce + packed)


def _parse(address: str) -> tuple[str, int]:
    host, colon, port = text("address", address).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (host and colon and port.isdecimal()):
        raise InvalidArgument(f"address={address!r}: give 'host:port', as 10.0.0.5:7000")
    return host, integer("port", int(port), most=65535)
