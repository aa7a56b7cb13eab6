"""Exchange of small blobs between the processes of a fabric."""

from __future__ import annotations

import abc
import time
from typing import Any

from jax_fabric import compat

_PART_S = 0.2
# For what is known to be there.
_FETCH_S = 10.0


class Bootstrap(abc.ABC):
    """A key-value exchange between processes."""

    @abc.abstractmethod
    def publish(self, key: str, blob: bytes) -> None:
        """Makes a blob known to all processes; each key once."""

    @abc.abstractmethod
    def publish_first(self, key: str, blob: bytes) -> bytes:
        """Publishes a blob unless another process did before; returns the one that counts."""

    @abc.abstractmethod
    def fetch(self, key: str, timeout_s: float) -> bytes:
        """Waits for a blob.

        Raises:
          TimeoutError: nobody published it in time; names the key.
        """


class LocalBootstrap(Bootstrap):
    """One process."""

    def __init__(self) -> None:
        """An empty board."""
        self._blobs: dict[str, bytes] = {}

    def publish(self, key: str, blob: bytes) -> None:
        """See Bootstrap."""
        self._blobs[key] = blob

    def publish_first(self, key: str, blob: bytes) -> bytes:
        """See Bootstrap."""
        return self._blobs.setdefault(key, blob)

    def fetch(self, key: str, timeout_s: float) -> bytes:
        """See Bootstrap."""
        del timeout_s
        if key not in self._blobs:
            raise TimeoutError(f"bootstrap: {key!r} was never published in this process")
        return self._blobs[key]


class JaxDistributedBootstrap(Bootstrap):
    """The coordination service of ``jax.distributed``."""

    def __init__(self, client: Any) -> None:
        """Uses a connected coordination client."""
        self._client = client

    def publish(self, key: str, blob: bytes) -> None:
        """See Bootstrap."""
        self._client.key_value_set_bytes(key, blob)

    def publish_first(self, key: str, blob: bytes) -> bytes:
        """See Bootstrap."""
        try:
            self._client.key_value_set_bytes(key, blob, allow_overwrite=False)
        except Exception as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
        return self.fetch(key, _FETCH_S)

    def fetch(self, key: str, timeout_s: float) -> bytes:
        """See Bootstrap."""
        deadline = time.monotonic() + timeout_s
        while True:
            # In small parts: Python notices Ctrl-C between them only.
            part_s = min(_PART_S, max(0.001, deadline - time.monotonic()))
            try:
                return self._client.blocking_key_value_get_bytes(key, round(part_s * 1000))
            except Exception as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
                if time.monotonic() < deadline:
                    continue
                raise TimeoutError(
                    f"bootstrap: {key!r} was not published within {timeout_s} s: is that process "
                    f"alive, and does it make the same fabrics and contexts in the same order?"
                ) from error


def default_bootstrap(processes: int) -> Bootstrap:
    """How as many processes find each other if the user says nothing.

    Raises:
      RuntimeError: jax.distributed is not initialised.
    """
    if processes == 1:
        return LocalBootstrap()
    client = compat.distributed_client()
    if client is None:
        raise RuntimeError(
            f"mesh: spans {processes} processes: call jax.distributed.initialize() first, or pass "
            f"bootstrap="
        )
    return JaxDistributedBootstrap(client)
