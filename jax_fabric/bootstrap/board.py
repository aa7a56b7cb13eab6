"""The board of an AddressBootstrap: blobs by key, in the process that keeps it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from jax_fabric.bootstrap import board_protocol as protocol

_BACKLOG = 1024
# A connection is for one request; whoever sends none in time is not one of us.
_REQUEST_S = 10.0
_LONGEST_WAIT_S = 60.0


class Board:
    """Listens at an address and answers, with a thread for each request, until it is closed."""

    def __init__(self, host: str, port: int, secret: bytes):
        """Listens.

        Raises:
          OSError: the address is not one of this machine, or is taken.
        """
        self._secret = secret
        self._blobs: dict[bytes, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="jf-board", daemon=True).start()

    def close(self) -> None:
        """Answers nobody any more; idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, protocol.FrameError):
            connection.settimeout(_REQUEST_S)
            nonce = protocol.new_nonce()
            connection.sendall(nonce)
            request, covered = protocol.read_request(connection, self._secret, nonce)
            status, blob = self._answer(request)
            protocol.send_reply(connection, self._secret, covered, status, blob)

    def _answer(self, request: protocol.Request) -> tuple[int, bytes]:
        with self._changed:
            if request.operation == protocol.FETCH:
                return self._wait(request.key, request.wait_ms / 1e3)
            if request.key in self._blobs:
                there = self._blobs[request.key]
                # The same again: a client that has not got the answer asks once more.
                if request.operation == protocol.PUBLISH_FIRST or there == request.blob:
                    return protocol.OK, there
                return protocol.EXISTS, b""
            self._blobs[request.key] = request.blob
            self._changed.notify_all()
            return protocol.OK, request.blob

    def _wait(self, key: bytes, seconds: float) -> tuple[int, bytes]:
        deadline = time.monotonic() + min(seconds, _LONGEST_WAIT_S)
        while key not in self._blobs and not self._closed:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return protocol.ABSENT, b""
            self._changed.wait(left_s)
        return (protocol.OK, self._blobs[key]) if key in self._blobs else (protocol.ABSENT, b"")
