"""Everything that depends on a version of JAX, or on a name that JAX does not promise to keep."""

from __future__ import annotations

import functools
import hashlib
import os
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core as jax_core
from jax.interpreters import mlir


def varying_axes(*values: jax.Array) -> frozenset[str]:
    """Mesh axes over which any of the values varies; empty with ``check_vma=False``."""
    axes: frozenset[str] = frozenset()
    for value in values:
        aval = jax.typeof(value)
        # jax 0.11 and older call it vma, newer ones keep it in the manual axis type.
        manual = getattr(aval, "manual_axis_type", None)
        axes |= frozenset(getattr(aval, "vma", frozenset()) if manual is None else manual.varying)
    return axes


def make_varying(*values: jax.Array) -> tuple[jax.Array, ...]:
    """The values, all varying over the union of their axes, as ``check_vma=True`` wants it.

    Differentiable: the gradient of a value that was replicated is summed over the axes that it was
    spread over.
    """
    union = varying_axes(*values)
    result = []
    for value in values:
        missing = tuple(sorted(union - varying_axes(value)))
        result.append(lax.pcast(value, missing, to="varying") if missing else value)
    return tuple(result)


def distributed_client() -> Any | None:
    """The coordination client of ``jax.distributed``, or None when it was not initialised."""
    from jax._src import distributed

    return distributed.global_state.client


def jaxlib_needs_thread_pool_reserve() -> bool:
    """Whether XLA:CPU of this jaxlib can deadlock with several local devices (jaxlib < 0.12)."""
    import jaxlib

    return tuple(int(part) for part in jaxlib.__version__.split(".")[:2]) < (0, 12)


def check_thread_pool(local_devices: int) -> None:
    """XLA:CPU before jaxlib 0.12 can run out of threads when devices wait for each other.

    Raises:
      RuntimeError: it could here; says what to set.
    """
    if local_devices == 1 or not jaxlib_needs_thread_pool_reserve():
        return
    needed = 4 * local_devices
    value = os.environ.get("NPROC", "")
    if not value.isdigit() or int(value) < needed:
        raise RuntimeError(
            f"NPROC={value or 'not set'}: with {local_devices} local CPU devices this jaxlib can "
            f"deadlock. Set NPROC={max(32, needed)} in the environment before Python imports jax."
        )


# A call of the fabric is a primitive of its own, not an ffi_call, because its lowering adds what a
# call is known by: different for all calls of a module, by the module's channel id, as XLA's own
# collectives use it; different for programs that are not alike; and equal in all processes.
def _call_abstract_eval(
    *operands: Any,
    target: str,
    results: tuple[tuple[tuple[int, ...], Any], ...],
    attributes: Any,
    aliases: tuple[tuple[int, int], ...],
) -> tuple[Any, ...]:
    from jax._src import core

    del attributes, aliases
    core.standard_vma_rule(target, *operands)
    return tuple(
        operands[0].update(shape=shape, dtype=dtype, weak_type=False) for shape, dtype in results
    )


def _program_hash(module_context: Any) -> int:
    """47 bits of the program's name, and of the shapes and dtypes of its operands and results."""
    name = module_context.module.operation.attributes["sym_name"]
    main = module_context.symbol_table["main"].attributes["function_type"]
    digest = hashlib.blake2b(f"{name} {main}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 17


def _call_lowering(
    ctx: Any, *operands: Any, target: str, results: Any, attributes: Any, aliases: Any
) -> Any:
    del results
    # Channel ids have 16 bits; JAX sees to that.
    channel_id = ctx.module_context.new_channel()
    call_index = np.int64(_program_hash(ctx.module_context) << 16 | channel_id)
    lower = jax.ffi.ffi_lowering(target, operand_output_aliases=dict(aliases))
    return lower(ctx, *operands, call_index=call_index, **dict(attributes))


def _call_impl(*operands: Any, **parameters: Any) -> Any:
    return jax.jit(functools.partial(fabric_call_p.bind, **parameters))(*operands)


fabric_call_p = jax_core.Primitive("jax_fabric_call")
fabric_call_p.multiple_results = True
fabric_call_p.def_impl(_call_impl)
fabric_call_p.def_abstract_eval(_call_abstract_eval)
# Not cacheable: a lowering that is used twice would give two calls the same number.
mlir.register_lowering(fabric_call_p, _call_lowering, cacheable=False)
