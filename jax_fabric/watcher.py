"""Programs that tell the host how far they are: ``bump`` inside of jit, a callback outside."""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from jax_fabric import primitives
from jax_fabric.engine.watcher import Watcher

_CLOSE_TIMEOUT_S = 10.0


class ProgramWatcher:
    """What programs store by ``bump``, and a callback; made by ``Fabric.watcher``.

    It has a 64-bit word for each local device of the fabric's mesh, so that no device hides what
    another one says.
    """

    def __init__(self, handle: int, watchers: Sequence[Watcher]):
        """Used by ``Fabric.watcher``: one watcher for each local device."""
        self._handle = handle
        self._watchers = tuple(watchers)

    @property
    def handle(self) -> int:
        """Equal in all processes, part of compiled programs."""
        return self._handle

    def load(self) -> list[int]:
        """The words of the local devices, in the order of the mesh; with acquire."""
        return [watcher.load() for watcher in self._watchers]

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """The callback does not run any more afterwards; idempotent.

        Programs that bump it still run, and nobody hears of it.

        Raises:
          DeadlineExceeded: a call of the callback has not returned by then.
        """
        for watcher in self._watchers:
            watcher.close(timeout_s)

    def __enter__(self) -> ProgramWatcher:
        """The watcher itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        """Closes."""
        self.close()


def bump(watcher: ProgramWatcher, value: int | jax.Array, x: Any) -> Any:
    """Stores a value into the watcher's word of the device that the program runs on.

    Inside of jit, and of ``shard_map`` where the mesh has several devices. The store comes after
    all that x is made of, and before all that is made of the result: go on with the result, or XLA
    drops the call. What the program wrote before is there when the callback runs. On a GPU the
    call is a kernel of its own, which programs that XLA records replay.

    Args:
      watcher: of ``Fabric.watcher``.
      value: whole number of at most 64 bits, static or an integer scalar of the program; modulo
        2**64. Put the rank into it (``lax.axis_index``) where it matters who says it.
      x: pytree of arrays, of which there is at least one. They stay in place where XLA can let
        them; x that is used again elsewhere is copied.

    Returns:
      x. Its gradient is that of x and bumps nothing; under vmap there is one bump for the batch.

    Raises:
      ValueError: at trace time: an argument is wrong, or ``value`` is batched by vmap.
      jax.errors.JaxRuntimeError: at run time: the device is not one of the watcher's fabric.
    """
    if not isinstance(watcher, ProgramWatcher):
        raise ValueError(f"bump: watcher={watcher!r}: must be what Fabric.watcher returned")
    leaves, tree = jax.tree.flatten(x)
    if not leaves:
        raise ValueError(f"bump: x={x!r}: has no array: give what the program goes on with")
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    return jax.tree.unflatten(tree, _bump(watcher.handle, _words(value), *leaves))


def _words(value: int | jax.Array) -> jax.Array:
    """uint32[2]: the lower and the upper half."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        number = int(value)
        if not -(2**63) <= number < 2**64:
            raise ValueError(f"bump: value={value}: must have at most 64 bits")
        number %= 2**64
        return jnp.asarray(np.array([number & 0xFFFFFFFF, number >> 32], np.uint32))
    value = jnp.asarray(value)
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.integer):
        raise ValueError(
            f"bump: value is {value.dtype}{list(value.shape)}, and must be an integer scalar"
        )
    if value.dtype.itemsize == 8:
        upper = lax.shift_right_logical(value, jnp.asarray(32, value.dtype)).astype(jnp.uint32)
    else:
        upper = jnp.where(value < 0, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))
    return jnp.stack([value.astype(jnp.uint32), upper])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _bump(handle: int, words: jax.Array, *leaves: jax.Array) -> tuple[jax.Array, ...]:
    @custom_vmap
    def call(words: jax.Array, *leaves: jax.Array) -> tuple[jax.Array, ...]:
        return primitives.call(
            "jf_bump",
            (words, *leaves),
            [(leaf.shape, leaf.dtype) for leaf in leaves],
            aliases=[(i + 1, i) for i in range(len(leaves))],
            watcher=handle,
        )

    @call.def_vmap
    def _(axis_size: int, batched: Sequence[bool], words: jax.Array, *leaves: jax.Array) -> Any:
        if batched[0]:
            raise ValueError(
                "bump: value differs over a batch of vmap, and there is one bump for all of it: "
                "bump outside of vmap"
            )
        return call(words, *leaves), tuple(batched[1:])

    return call(words, *leaves)


@_bump.defjvp
def _bump_jvp(handle: int, primals: Any, tangents: Any) -> tuple[Any, Any]:
    return _bump(handle, *primals), tuple(tangents[1:])
