"""What each process of processes_test runs: every check in one launch, one fabric for each."""

from __future__ import annotations

import contextlib
import functools
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_fabric as jf
from jax_fabric.testing import oracle, routing

TOKENS, TOP_K, HIDDEN = 6, 2, 16
REPEATS = 20
TIMEOUT_S = 20.0


class Inputs:
    """Rows, routes and weights whose sums and products are exact: results are compared bitwise."""

    def __init__(
        self, ranks: int, *, kind: str = "uniform", dtype: Any = jnp.float32, seed: int = 0
    ):
        rng = np.random.default_rng(seed)
        self.ranks = ranks
        self.experts_in_all = 2 * ranks + 1
        routed = routing.generate(
            kind,
            ranks=ranks,
            tokens=TOKENS,
            experts=self.experts_in_all,
            top_k=TOP_K,
            seed=seed,
        )
        self.x = np.asarray(rng.integers(-8, 9, (ranks, TOKENS, HIDDEN)), jnp.dtype(dtype))
        self.experts = routed.experts
        # Quarters and halves.
        self.weights = (2.0 ** -rng.integers(1, 3, routed.weights.shape)).astype(np.float32)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.x, self.experts, self.weights

    def dispatched(self, x: Any = None) -> oracle.Dispatched:
        x = self.x if x is None else x
        return oracle.dispatch(
            jnp.asarray(x), self.experts, self.weights, num_experts=self.experts_in_all
        )

    def layer(self, x: Any, scale: float) -> jax.Array:
        """combine(scale * dispatch(x)) by the oracle, [N, T, H]."""
        r = self.dispatched(x)
        return oracle.combine(r.tokens * jnp.asarray(scale, r.tokens.dtype), r, tokens=TOKENS)

    def layers(self, *scales: float) -> jax.Array:
        x = jnp.asarray(self.x)
        for scale in scales:
            x = self.layer(x, scale)
        return x


def layer(moe: jf.moe.ExpertParallel, x: Any, e: Any, w: Any, scale: Any, **options: Any) -> Any:
    r = moe.dispatch(x, e, w, **options)
    return moe.combine(r.tokens * jnp.asarray(scale, r.tokens.dtype), r, **options)


class Ranks:
    """A fabric over all devices, with what the checks do on it."""

    def __init__(self, mesh: jax.sharding.Mesh, moe: jf.moe.ExpertParallel, spec: P):
        self.mesh = mesh
        self.moe = moe
        self.spec = spec

    def place(self, array: np.ndarray) -> jax.Array:
        """[N, T, ...], equal in all processes, to each rank's part on its device."""
        flat = np.asarray(array).reshape(-1, *array.shape[2:])
        sharding = NamedSharding(self.mesh, self.spec)
        return jax.make_array_from_callback(flat.shape, sharding, lambda index: flat[index])

    def jit(self, function: Callable[..., Any], *, check_vma: bool = False) -> Callable[..., Any]:
        return jax.jit(
            jax.shard_map(
                function,
                mesh=self.mesh,
                in_specs=self.spec,
                out_specs=self.spec,
                check_vma=check_vma,
            )
        )

    def run(self, function: Callable[..., Any], *arrays: np.ndarray, **options: Any) -> Any:
        return self.jit(function, **options)(*map(self.place, arrays))

    def assert_equal(self, got: jax.Array, want: Any, message: str = "") -> None:
        """Bitwise, what this process holds of it; `want` is [N, T, ...]."""
        want = np.asarray(want)
        want = want.reshape(-1, *want.shape[2:])
        for shard in got.addressable_shards:
            np.testing.assert_array_equal(
                np.asarray(shard.data), want[shard.index], err_msg=f"{message} {shard.device}"
            )


@contextlib.contextmanager
def ranks(
    inputs: Inputs,
    mesh: jax.sharding.Mesh | None = None,
    axes: Sequence[str] = ("ep",),
    **options: Any,
) -> Iterator[Ranks]:
    mesh = jax.make_mesh((inputs.ranks,), ("ep",)) if mesh is None else mesh
    with jf.Fabric(mesh, timeout_s=TIMEOUT_S) as fabric:
        arguments = dict(
            axis_name="ep",
            num_experts=inputs.experts_in_all,
            top_k=TOP_K,
            max_tokens=TOKENS,
            hidden=HIDDEN,
            dtype=inputs.x.dtype,
        )
        moe = jf.moe.ExpertParallel(fabric, **(arguments | options))
        yield Ranks(mesh, moe, P(tuple(axes)))


def world() -> int:
    return len(jax.devices())


# --- the checks


def forward() -> None:
    for kind, dtype in (("holes", jnp.float32), ("one_rank", jnp.bfloat16)):
        if True:
            inputs = Inputs(world(), kind=kind, dtype=dtype)
            want = inputs.dispatched()
            with ranks(inputs) as on:
                capacity = on.moe.capacity

                def f(x, e, w, moe=on.moe, capacity=capacity):
                    r = moe.dispatch(x, e, w)
                    used = jnp.arange(capacity) < r.group_sizes.sum()
                    y = jnp.where(used[:, None], 2 * r.tokens, jnp.nan)
                    rows = jnp.where(used[:, None], r.tokens, 0)
                    plain = moe.combine(y, r, weighted=False)
                    weights = jnp.where(used, r.weights, 0)
                    return rows, weights, r.group_sizes, moe.combine(y, r), plain

                rows, weights, sizes, out, plain = on.run(f, *inputs.arrays())
                name = f"{kind} {dtype.__name__}"
                on.assert_equal(rows, want.tokens, name)
                on.assert_equal(weights, want.weights, name)
                on.assert_equal(sizes, want.group_sizes, name)
                on.assert_equal(out, inputs.layers(2.0), name)
                unweighted = oracle.combine(2 * want.tokens, want, tokens=TOKENS, weighted=False)
                on.assert_equal(plain, unweighted, name)


def _loss(of_layer: Callable[..., Any], x: Any, e: Any, w: Any, c: Any) -> Any:
    return (of_layer(x, e, w) * c).sum()


def gradients() -> None:
    for kind in ("uniform", "duplicates"):
        inputs = Inputs(world(), kind=kind, seed=1)
        c = np.random.default_rng(2).integers(-2, 3, inputs.x.shape).astype(np.float32)

        def square(x, e, w, experts_in_all=inputs.experts_in_all):
            r = oracle.dispatch(x, e, w, num_experts=experts_in_all)
            return oracle.combine(r.tokens * r.tokens, r, tokens=TOKENS)

        want = jax.grad(functools.partial(_loss, square), argnums=(0, 2))(
            *map(jnp.asarray, (*inputs.arrays(), c))
        )
        with ranks(inputs) as on:

            def ours(x, e, w, moe=on.moe):
                r = moe.dispatch(x, e, w)
                return moe.combine(r.tokens * r.tokens, r)

            for check_vma in (False, True):
                gradient = on.jit(
                    jax.grad(functools.partial(_loss, ours), argnums=(0, 2)), check_vma=check_vma
                )
                operands = [on.place(each) for each in (*inputs.arrays(), c)]
                for _ in range(3):
                    for name, got, expected in zip("xw", gradient(*operands), want, strict=True):
                        on.assert_equal(got, expected, f"{kind} {name}")


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
        want = inputs.layers(*scales)

        def loss(x):
            for scale in scales:
                x = inputs.layer(x, scale)
            return x.sum()

        want_gradient = jax.grad(loss)(jnp.asarray(inputs.x))
        for _ in range(3):
            on.assert_equal(f(*operands), want)
            on.assert_equal(gradient(*operands), want_gradient)


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


def unrolled_layers() -> None:
    inputs = Inputs(world())
    scales = (1.0, 2.0, 0.5)
    with ranks(inputs) as on:

        def f(x, e, w):
            for scale in scales:
                x = layer(on.moe, x, e, w, scale)
            return x

        for check_vma in (False, True):
            program = on.jit(f, check_vma=check_vma)
            operands = [on.place(each) for each in inputs.arrays()]
            for _ in range(REPEATS):
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
                out = on.moe.combine(r.tokens * scale, r)
                # The next call waits for this one's end.
                return out, r.token + lax.optimization_barrier(out)[0, 0].astype(jnp.int32) * 0

            after, results = jnp.zeros((1,), jnp.int32), []
            for scale in scales:
                out, after = one(x, e, w, jnp.float32(scale), after)
                results.append(out)
            return results

        program, ordered_program = on.jit(f), on.jit(ordered)
        operands = [on.place(each) for each in inputs.arrays()]
        for _ in range(REPEATS):
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
    count = world()
    shape = (2, count // 2) if count % 2 == 0 else (count, 1)
    devices = np.array(jax.devices())
    for arranged in (devices.reshape(shape), devices.reshape(shape[::-1]).T):
        if arranged.shape[1] == 0:
            continue
        mesh = jax.sharding.Mesh(arranged, ("dp", "ep"))
        groups, size = arranged.shape
        each = [Inputs(size, seed=group) for group in range(groups)]
        with ranks(each[0], mesh, axes=("dp", "ep")) as on:
            stacked = [
                np.concatenate(parts) for parts in zip(*(i.arrays() for i in each), strict=True)
            ]
            want = np.concatenate([np.asarray(i.layers(2.0)) for i in each])
            for _ in range(3):
                got = on.run(
                    lambda x, e, w, moe=on.moe: layer(moe, x, e, w, 2.0), *stacked, check_vma=True
                )
                on.assert_equal(got, want)


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
    scales = (2.0, 0.5) * 8
    with ranks(inputs) as on:

        def f(x, e, w):
            for scale in scales:
                x = layer(on.moe, x, e, w, scale)
            return x

        got = on.jit(f)(*map(on.place, inputs.arrays()))
    on.assert_equal(got, inputs.layers(*scales))


CHECKS = {
    check.__name__: check
    for check in (
        forward,
        gradients,
        scan,
        two_jit_calls,
        one_call_feeds_the_next,
        independent_calls_on_one_channel,
        independent_calls_on_two_channels,
        unrolled_layers,
        one_jitted_layer_called_dependently,
        another_mesh_axis,
        two_contexts,
        fabrics_of_some_processes,
        results_outlive_the_fabric,
        one_jitted_layer_called_independently,
    )
}


def run_all() -> dict[str, str]:
    """What went wrong, for each check; empty where nothing did."""
    outcome = {}
    for name, check in CHECKS.items():
        begin = time.monotonic()
        try:
            outcome[name] = check() or ""
        except Exception:
            outcome[name] = traceback.format_exc()
        print(
            f"{name}: {time.monotonic() - begin:.1f} s", "bad" if outcome[name] else "", flush=True
        )
    return outcome
