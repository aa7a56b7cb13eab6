"""The secret that the processes of a fabric share."""

from __future__ import annotations

from typing import Any, NoReturn

from jax_fabric import _core
from jax_fabric.arguments import byte_string


class Secret:
    """What the processes of a fabric know and nobody else: 16 to 1024 bytes.

    It authenticates peers and messages; docs/security.md says against whom. It is never printed,
    and pickling it is an error: give it to other processes by ``reveal()`` over a channel that you
    trust, or by a file (JAX_FABRIC_SECRET_FILE).

    Attributes:
      fingerprint: eight hex digits that tell secrets apart and do not reveal them; errors show it.
    """

    __slots__ = ("_native",)
    _native: _core.Secret

    def __init__(self, value: bytes):
        """A given secret.

        Args:
          value: bytes that cannot be guessed; 32 random ones are right.

        Raises:
          InvalidArgument: too few or too many.
        """
        self._native = _core.Secret(byte_string("value", value))

    @classmethod
    def generate(cls) -> Secret:
        """A new one, from the kernel's random numbers."""
        return cls._wrap(_core.Secret.generate())

    @classmethod
    def from_environment(cls) -> Secret | None:
        """The one in the file that JAX_FABRIC_SECRET_FILE names; None where that is not set.

        Raises:
          FabricError: the file cannot be read, or others can read it.
        """
        native = _core.Secret.from_environment()
        return None if native is None else cls._wrap(native)

    @classmethod
    def _wrap(cls, native: _core.Secret) -> Secret:
        secret = cls.__new__(cls)
        secret._native = native
        return secret

    def reveal(self) -> bytes:
        """The bytes, to be passed on."""
        return self._native.reveal()

    @property
    def fingerprint(self) -> str:
        """See above."""
        return self._native.fingerprint

    def __repr__(self) -> str:
        """Without the bytes."""
        return f"Secret(fingerprint {self.fingerprint})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuses to be pickled or copied."""
        raise TypeError(
            "a jax_fabric.Secret is not pickled, so that it does not get into a file by accident: "
            "pass on secret.reveal() where you mean to"
        )


def native_secret(secret: Secret | bytes | None) -> _core.Secret | None:
    """A ``secret=`` argument for the extension module."""
    if secret is None:
        return None
    return (secret if isinstance(secret, Secret) else Secret(byte_string("secret", secret)))._native
