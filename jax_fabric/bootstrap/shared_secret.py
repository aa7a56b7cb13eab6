"""How the processes of a fabric come to know the same secret."""

from __future__ import annotations

from collections.abc import Sequence

from jax_fabric.bootstrap.exchange import Bootstrap
from jax_fabric.secret import Secret

_GENERATED = b"generated "
_GIVEN = b"given "
_FIX = "give every process the same secret (argument secret=, or JAX_FABRIC_SECRET_FILE), or none"


def agree_on_secret(
    bootstrap: Bootstrap,
    key: str,
    *,
    given: Secret | bytes | None,
    process: int,
    processes: Sequence[int],
    timeout_s: float,
    rejoin: bool = False,
) -> Secret:
    """The secret of a fabric; collective.

    The first process publishes what it has: a secret that it has just made, or only the fingerprint
    of one that it was given. The others find out at once whether theirs is another one.

    Args:
      bootstrap: of the fabric.
      key: under which it is published.
      given: of this process; None: any.
      process: this one.
      processes: of the fabric, rising.
      timeout_s: how long to wait for the first one, seconds.
      rejoin: the others agreed on it before this process came back.

    Raises:
      ValueError: this process and the first one were not given the same.
      TimeoutError: the first process has published nothing.
    """
    if isinstance(given, bytes):
        given = Secret(given)
    if process == processes[0] and not rejoin:
        secret = given or Secret.generate()
        if len(processes) > 1:
            published = (
                _GIVEN + secret.fingerprint.encode() if given else _GENERATED + secret.reveal()
            )
            bootstrap.publish(key, published)
        return secret
    published = bootstrap.fetch(key, timeout_s)
    first = f"process {processes[0]}"
    if published.startswith(_GENERATED):
        if given is None:
            return Secret(published.removeprefix(_GENERATED))
        raise ValueError(
            f"secret={given!r}: process {process} was given one, and {first} was not: {_FIX}"
        )
    fingerprint = published.removeprefix(_GIVEN).decode(errors="replace")
    if given is None or given.fingerprint != fingerprint:
        raise ValueError(
            f"secret={given!r}: process {process} has another secret than {first}, whose has the "
            f"fingerprint {fingerprint}: {_FIX}"
        )
    return given
