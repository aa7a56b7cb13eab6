"""What each process of processes_test runs: every check in one launch, one fabric for each."""

from __future__ import annotations

import dataclasses
import functools
import time
import traceback

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from processes_testing import (
    FEW,
    REPEATS,
    TOKENS,
    Expected,
    Inputs,
    forward_inputs,
    gradient_inputs,
    gradient_of,
    layer,
    ranks,
    world,
)

from jax_fabric import engine, errors
from jax_fabric.testing import oracle


def forward(want: Expected) -> None:
    for inputs, expected in zip(forward_inputs(world()), want.forward, strict=True):
        with ranks(inputs) as on:

            def f(x, e, w, moe=on.moe):
                r = moe.dispatch(x, e, w)
                used = jnp.arange(moe.capacity) < r.group_sizes.sum()
                y = jnp.where(used[:, None], 2 * r.tokens, jnp.nan)
                return (
                    jnp.where(used[:, None], r.tokens, 0),
                    jnp.where(used, r.weights, 0),
                    r.group_sizes,
                    moe.combine(y, r),
                    moe.combine(y, r, weighted=False),
                )

            results = on.run(f, *inputs.arrays())
            for got, field in zip(results, dataclasses.fields(expected), strict=True):
                on.assert_equal(got, getattr(expected, field.name), field.name)


def quantised_rows() -> None:
    """Travel in eight bits; experts get them quantised, or turned back."""
    inputs = Inputs(world(), seed=3)
    values, scales = oracle.quantise(inputs.x)
    rows = np.asarray(oracle.dequantise(values, scales, jnp.float32))
    # Of two terms that are multiples of the same number, the sum is rounded like the product.
    want = rows * inputs.weights.sum(-1)[..., None]
    for tokens_dtype in (None, jnp.float32):
        with ranks(inputs, dispatch_dtype=jnp.float8_e4m3fn, tokens_dtype=tokens_dtype) as on:

            def f(x, e, w, moe=on.moe):
                r = moe.dispatch(x, e, w)
                y = r.tokens.astype(jnp.float32)
                return moe.combine(y if r.scales is None else y * r.scales, r)

            on.assert_equal(on.run(f, *inputs.arrays()), want, f"tokens_dtype={tokens_dtype}")


def gradients(want: Expected) -> None:
    inputs, c = gradient_inputs(world())
    with ranks(inputs) as on:

        def square(x, e, w):
            r = on.moe.dispatch(x, e, w)
            return on.moe.combine(r.tokens * r.tokens, r)

        gradient = on.jit(gradient_of(square), check_vma=True)
        operands = [on.place(each) for each in (*inputs.arrays(), c)]
        for _ in range(FEW):
            for name, got, each in zip("xw", gradient(*operands), want.gradients, strict=True):
                on.assert_equal(got, each, name)


def scan() -> None:
    inputs = Inputs(world())
    scales = (1.0, 2.0, 0.5, 2.0)
    with ranks(inputs) as on:

        def stack(x, e, w):
            def body(x, scale):
                return layer(on.moe, x, e, w, scale), None

            return lax.scan(jax.checkpoint(body), x, jnp.asarray(scales))[0]

        f = on.jit(stack)
        gradient = on.jit(jax.grad(lambda x, e, w: stack(x, e, w).sum()))
        operands = [on.place(each) for each in inputs.arrays()]
        # Linear in x.
        ones = Inputs(world())
        ones.x = np.ones_like(ones.x)
        for _ in range(3):
            on.assert_equal(f(*operands), inputs.layers(*scales))
            on.assert_equal(gradient(*operands), ones.layers(*scales))


def two_jit_calls() -> None:
    """In flight together, made in one order and called in the other, with local work in between."""
    inputs = Inputs(world())
    with ranks(inputs) as on:
        f, g = (on.jit(lambda x, e, w, s=s: layer(on.moe, x, e, w, s)) for s in (2.0, 0.5))
        operands = [on.place(each) for each in inputs.arrays()]
        compiled = [f.lower(*operands).compile(), g.lower(*operands).compile()]
        wants = [inputs.layers(2.0), inputs.layers(0.5)]
        for which in (1, 0, 0, 1):
            on.assert_equal(compiled[which](*operands), wants[which])
        for which in range(jax.process_index()):
            # Local programs that the other processes do not run.
            jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.ones(which + 1)))
        for first, second in ((f, g), (g, f)):
            results = [(first(*operands), second(*operands)) for _ in range(REPEATS)]
            order = (0, 1) if first is f else (1, 0)
            for pair in results:
                for got, which in zip(pair, order, strict=True):
                    on.assert_equal(got, wants[which])


def one_call_feeds_the_next() -> None:
    inputs = Inputs(world())
    with ranks(inputs) as on:
        f = on.jit(lambda x, e, w: layer(on.moe, x, e, w, 2.0))
        x, e, w = map(on.place, inputs.arrays())
        for _ in range(3):
            x = f(x, e, w)
        on.assert_equal(x, inputs.layers(2.0, 2.0, 2.0))


def independent_calls_on_one_channel() -> None:
    inputs = Inputs(world())
    scales = (0.5, 1.0, 2.0, 4.0, 8.0)
    with ranks(inputs) as on:
        f = on.jit(lambda x, e, w: [layer(on.moe, x, e, w, scale) for scale in scales])
        operands = [on.place(each) for each in inputs.arrays()]
        wants = [inputs.layers(scale) for scale in scales]
        for i in range(REPEATS):
            for scale, got, want in zip(scales, f(*operands), wants, strict=True):
                on.assert_equal(got, want, f"run {i}, scale {scale}")


def independent_calls_on_two_channels() -> None:
    inputs = Inputs(world())
    scales = (0.5, 1.0, 2.0, 4.0)
    with ranks(inputs, channels=2) as on:
        f = on.jit(
            lambda x, e, w: [
                layer(on.moe, x, e, w, scale, channel=i % 2) for i, scale in enumerate(scales)
            ]
        )
        operands = [on.place(each) for each in inputs.arrays()]
        wants = [inputs.layers(scale) for scale in scales]
        for i in range(REPEATS):
            for scale, got, want in zip(scales, f(*operands), wants, strict=True):
                on.assert_equal(got, want, f"run {i}, scale {scale}")


def rounds() -> None:
    """A slot for a third of the rows: calls take rounds, side by side on two channels."""
    inputs, ones = Inputs(world()), Inputs(world())
    ones.x = np.ones_like(ones.x)
    for each in (inputs, ones):
        each.experts[...] = 3, 4  # all tokens to rank 1
    scales = (0.5, 1.0, 2.0, 4.0)
    with ranks(inputs, channels=2, private_tokens=TOKENS // 3) as on:

        def f(x, e, w):
            calls = [layer(on.moe, x, e, w, scale, channel=i % 2) for i, scale in enumerate(scales)]
            return calls, (on.moe.dispatch(x, e, w).routes.rows >= 0).sum(axis=1)

        program = on.jit(f)
        gradient = on.jit(jax.grad(lambda x, e, w: layer(on.moe, x, e, w, 2.0).sum()))
        operands = [on.place(each) for each in inputs.arrays()]
        for i in range(FEW):
            results, taken = program(*operands)
            for scale, got in zip(scales, results, strict=True):
                on.assert_equal(got, inputs.layers(scale), f"run {i}, scale {scale}")
            on.assert_equal(taken, np.full((world(), world()), 3))
            on.assert_equal(gradient(*operands), ones.layers(2.0), f"run {i}")


def unrolled_layers() -> None:
    inputs = Inputs(world())
    scales = (1.0, 2.0, 0.5)
    with ranks(inputs) as on:

        def f(x, e, w):
            for scale in scales:
                x = layer(on.moe, x, e, w, scale)
            return x

        program = on.jit(f, check_vma=True)
        operands = [on.place(each) for each in inputs.arrays()]
        for _ in range(FEW):
            on.assert_equal(program(*operands), inputs.layers(*scales))


def one_jitted_layer_called_dependently() -> None:
    inputs = Inputs(world())
    scales = (1.0, 2.0, 0.5)
    with ranks(inputs) as on:
        jitted = jax.jit(functools.partial(layer, on.moe))

        def f(x, e, w):
            for scale in scales:
                x = jitted(x, e, w, jnp.float32(scale))
            return x

        def ordered(x, e, w):
            """No data flows from one to the next; after= does."""

            @jax.jit
            def one(x, e, w, scale, after):
                r = on.moe.dispatch(x, e, w, after=after)
                out = on.moe.combine(r.tokens * scale * (1 + lax.axis_index("ep") % 2), r)
                # The next call waits for this one's end.
                return out, r.token + lax.optimization_barrier(out)[0, 0].astype(jnp.int32) * 0

            after, results = jnp.zeros((1,), jnp.int32), []
            for scale in scales:
                out, after = one(x, e, w, jnp.float32(scale), after)
                results.append(out)
            return results

        program, ordered_program = on.jit(f), on.jit(ordered)
        operands = [on.place(each) for each in inputs.arrays()]
        for _ in range(FEW):
            on.assert_equal(program(*operands), inputs.layers(*scales))
            for got, scale in zip(ordered_program(*operands), scales, strict=True):
                on.assert_equal(got, inputs.layers(scale))


def one_jitted_layer_called_independently() -> str:
    """Right, or an error that says what to do, on every rank; never another call's rows."""
    inputs = Inputs(world())
    scales = (0.5, 1.0, 2.0)
    wants = [inputs.layers(scale) for scale in scales]
    try:
        with ranks(inputs, timeout_s=3.0) as on:
            jitted = jax.jit(functools.partial(layer, on.moe))
            f = on.jit(lambda x, e, w: [jitted(x, e, w, jnp.float32(scale)) for scale in scales])
            operands = [on.place(each) for each in inputs.arrays()]
            for i in range(REPEATS):
                for scale, got, want in zip(scales, f(*operands), wants, strict=True):
                    on.assert_equal(got, want, f"run {i}, scale {scale}")
    except (jax.errors.JaxRuntimeError, RuntimeError) as error:
        return str(error)
    return ""


def another_mesh_axis() -> None:
    """Every slice is a group of its own, along processes and across them."""
    devices = np.array(jax.devices())
    square = devices.reshape(2, -1) if world() == 4 else devices.reshape(1, -1)
    for arranged in (square, square.T):
        mesh = jax.sharding.Mesh(arranged, ("dp", "ep"))
        groups, size = arranged.shape
        each = [Inputs(size, seed=group) for group in range(groups)]
        with ranks(each[0], mesh, axes=("dp", "ep")) as on:
            stacked = [
                np.concatenate(parts) for parts in zip(*(i.arrays() for i in each), strict=True)
            ]
            want = np.concatenate([np.asarray(i.layers(2.0)) for i in each])
            for _ in range(3):
                f = lambda x, e, w, moe=on.moe: layer(moe, x, e, w, 2.0)  # noqa: E731
                on.assert_equal(on.run(f, *stacked, check_vma=True), want)


def two_contexts() -> None:
    inputs = Inputs(world())
    with ranks(inputs) as on:
        with ranks(inputs) as other:

            def f(x, e, w):
                return layer(on.moe, x, e, w, 2.0), layer(other.moe, x, e, w, 4.0)

            for _ in range(3):
                two, four = on.run(f, *inputs.arrays())
                on.assert_equal(two, inputs.layers(2.0))
                on.assert_equal(four, inputs.layers(4.0))
        # The outer fabric is as good as before.
        on.assert_equal(
            on.run(lambda x, e, w: layer(on.moe, x, e, w, 0.5), *inputs.arrays()),
            inputs.layers(0.5),
        )


def fabrics_of_some_processes() -> None:
    """Each process has one of its own; then again one of all."""
    own = jax.sharding.Mesh(np.array(jax.local_devices()), ("ep",))
    inputs = Inputs(own.size)
    for _ in range(1 + jax.process_index()):
        with ranks(inputs, own) as on:
            got = on.run(lambda x, e, w, moe=on.moe: layer(moe, x, e, w, 2.0), *inputs.arrays())
            on.assert_equal(got, inputs.layers(2.0))
    one_call_feeds_the_next()


def results_outlive_the_fabric() -> None:
    """Leaving the block waits for what was started inside of it."""
    inputs = Inputs(world())
    scales = (2.0, 0.5) * 3
    with ranks(inputs) as on:

        def f(x, e, w):
            for scale in scales:
                x = layer(on.moe, x, e, w, scale)
            return x

        got = on.jit(f)(*map(on.place, inputs.arrays()))
    on.assert_equal(got, inputs.layers(*scales))


def memory_of_other_processes() -> None:
    """Cannot be registered here, also where it is on one device, and the error says what can be."""
    others = [d for d in jax.devices() if d.process_index != jax.process_index()]
    spread = NamedSharding(jax.make_mesh((world(),), ("x",)), P("x"))
    with engine.TransferEngine() as transfers:
        group = transfers.add_group("memory")
        for sharding in (SingleDeviceSharding(others[0]), spread):
            values = np.zeros(world(), np.float32)
            array = jax.make_array_from_callback(
                values.shape, sharding, lambda index, v=values: v[index], dtype=values.dtype
            )
            try:
                group.register(array)
            except errors.InvalidArgument as error:
                found = str(error)
            else:
                raise AssertionError(f"registered {array.sharding}")
            assert f"this process ({jax.process_index()}) does not have all" in found, found
            for shard in array.addressable_shards:  # what it says that one should do
                assert group.register(shard.data).array.nbytes == 4


CHECKS = {
    check.__name__: check
    for check in (
        forward,
        quantised_rows,
        gradients,
        scan,
        two_jit_calls,
        one_call_feeds_the_next,
        independent_calls_on_one_channel,
        independent_calls_on_two_channels,
        rounds,
        unrolled_layers,
        one_jitted_layer_called_dependently,
        another_mesh_axis,
        two_contexts,
        fabrics_of_some_processes,
        results_outlive_the_fabric,
        memory_of_other_processes,
        one_jitted_layer_called_independently,
    )
}


def run_all(want: Expected) -> dict[str, str]:
    """What went wrong, for each check; empty where nothing did."""
    outcome = {}
    for name, check in CHECKS.items():
        begin = time.monotonic()
        try:
            outcome[name] = (check(want) if check in (forward, gradients) else check()) or ""
        except Exception:
            outcome[name] = traceback.format_exc()
        print(
            f"{name}: {time.monotonic() - begin:.1f} s", "bad" if outcome[name] else "", flush=True
        )
    return outcome
