"""Everything that depends on a version of JAX, or on a name that JAX does not promise to keep."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core as jax_core
from jax.interpreters import mlir

_TICKET_TARGET = "jf_moe_ticket"


def varying_axes(*values: jax.Array) -> frozenset[str]:
    """Mesh axes over which any of the values varies; empty with ``check_vma=False``."""
    axes: frozenset[str] = frozenset()
    for value in values:
        axes |= frozenset(getattr(jax.typeof(value), "vma", frozenset()))
    return axes


def make_varying(*values: jax.Array) -> tuple[jax.Array, ...]:
    """The values, all varying over the union of their axes, as ``check_vma=True`` wants it.

    Differentiable: the gradient of a value that was replicated is summed over the axes it was spread over.
    """
    union = varying_axes(*values)
    result = []
    for value in values:
        missing = tuple(sorted(union - varying_axes(value)))
        result.append(lax.pcast(value, missing, to="varying") if missing else value)
    return tuple(result)


def result_type(like: jax.Array, shape: Sequence[int], dtype: Any) -> Any:
    """Type of a result that varies over the same mesh axes as ``like``."""
    return jax.typeof(like).update(shape=tuple(shape), dtype=np.dtype(dtype), weak_type=False)


def distributed_client() -> Any | None:
    """The coordination client of ``jax.distributed``, or None when it was not initialised."""
    from jax._src import distributed

    return distributed.global_state.client


def jaxlib_needs_thread_pool_reserve() -> bool:
    """Whether XLA:CPU of this jaxlib can deadlock with several local devices (jaxlib < 0.12)."""
    import jaxlib

    return tuple(int(part) for part in jaxlib.__version__.split(".")[:2]) < (0, 12)


# A ticket is a primitive of its own, not an ffi_call, because its lowering adds the module's channel id: a number that
# is different for all calls of a module and equal in all processes, as XLA's own collectives use it.
def _ticket_abstract_eval(*operands: Any, context: int, channel: int) -> Any:
    from jax._src import core

    del context, channel
    core.standard_vma_rule("jax_fabric_ticket", *operands)
    rank = operands[0]
    return rank.update(shape=(1,), dtype=np.dtype(np.int32), weak_type=False)


def _ticket_lowering(ctx: Any, *operands: Any, context: int, channel: int) -> Any:
    lower = jax.ffi.ffi_lowering(_TICKET_TARGET)
    return lower(
        ctx,
        *operands,
        context=np.int64(context),
        channel=np.int64(channel),
        call_index=np.int64(ctx.module_context.new_channel()),
    )


def _ticket_impl(*operands: Any, context: int, channel: int) -> jax.Array:
    return jax.jit(functools.partial(ticket_p.bind, context=context, channel=channel))(*operands)


ticket_p = jax_core.Primitive("jax_fabric_ticket")
ticket_p.def_impl(_ticket_impl)
ticket_p.def_abstract_eval(_ticket_abstract_eval)
# Not cacheable: a lowering that is used twice would give two calls the same number.
mlir.register_lowering(ticket_p, _ticket_lowering, cacheable=False)
