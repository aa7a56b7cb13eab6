"""Frames between an AddressBootstrap and the board that one of its processes keeps."""

from __future__ import annotations

import dataclasses
import hmac
import secrets
import socket
import struct

NONCE_BYTES = 16
TAG_BYTES = 32
MOST_KEY_BYTES = 1024
MOST_BLOB_BYTES = 16 << 20

PUBLISH, PUBLISH_FIRST, FETCH = 1, 2, 3
OK, EXISTS, ABSENT = 1, 2, 3

_REQUEST = struct.Struct(">BIHI")  # operation, milliseconds to wait, bytes of key and of blob
_REPLY = struct.Struct(">BI")  # status, bytes of blob


class FrameError(ValueError):
    """Bytes that nobody with the secret has sent."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What a client asks for."""

    operation: int
    key: bytes
    blob: bytes = b""
    wait_ms: int = 0

    def pack(self) -> bytes:
        """As it travels, without its tag."""
        head = _REQUEST.pack(self.operation, self.wait_ms, len(self.key), len(self.blob))
        return head + self.key + self.blob


def new_nonce() -> bytes:
    """Of one connection."""
    return secrets.token_bytes(NONCE_BYTES)


def tag(secret: bytes, purpose: bytes, *parts: bytes) -> bytes:
    """Keyed hash of parts whose lengths are known to both sides."""
    key = hmac.digest(secret, b"jax_fabric board " + purpose, "sha256")
    return hmac.digest(key, b"".join(parts), "sha256")


def read_request(connection: socket.socket, secret: bytes, nonce: bytes) -> tuple[Request, bytes]:
    """A request, and what its reply's tag covers.

    Raises:
      FrameError: it is too long, of no known kind, or its tag is wrong.
      ConnectionError: the connection ended.
    """
    head = read_exactly(connection, _REQUEST.size)
    operation, wait_ms, key_bytes, blob_bytes = _REQUEST.unpack(head)
    if operation not in (PUBLISH, PUBLISH_FIRST, FETCH):
        raise FrameError(f"operation {operation}")
    if key_bytes > MOST_KEY_BYTES or blob_bytes > MOST_BLOB_BYTES:
        raise FrameError(f"{key_bytes} and {blob_bytes} bytes")
    body = read_exactly(connection, key_bytes + blob_bytes)
    expected = tag(secret, b"request", nonce, head, body)
    if not hmac.compare_digest(expected, read_exactly(connection, TAG_BYTES)):
        raise FrameError("wrong tag")
    request = Request(operation, body[:key_bytes], body[key_bytes:], wait_ms)
    return request, nonce + head + body


def send_reply(
    connection: socket.socket, secret: bytes, covered: bytes, status: int, blob: bytes
) -> None:
    """Answers the request that ``covered`` is of."""
    head = _REPLY.pack(status, len(blob))
    connection.sendall(head + blob + tag(secret, b"reply", covered, head, blob))


def read_reply(connection: socket.socket, secret: bytes, covered: bytes) -> tuple[int, bytes]:
    """Status and blob.

    Raises:
      FrameError: nobody with the secret has answered this very request so.
      ConnectionError: the connection ended.
    """
    head = read_exactly(connection, _REPLY.size)
    status, blob_bytes = _REPLY.unpack(head)
    if blob_bytes > MOST_BLOB_BYTES:
        raise FrameError(f"{blob_bytes} bytes")
    blob = read_exactly(connection, blob_bytes)
    expected = tag(secret, b"reply", covered, head, blob)
    if not hmac.compare_digest(expected, read_exactly(connection, TAG_BYTES)):
        raise FrameError("wrong tag")
    return status, blob


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes.

    Raises:
      ConnectionError: the connection ended before.
    """
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(1 << 20, count - len(parts)))
        if not part:
            raise ConnectionError("the connection ended in the middle of a frame")
        parts += part
    return bytes(parts)
