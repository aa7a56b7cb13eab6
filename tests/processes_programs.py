"""What each process of processes_test runs: every check in one launch, one fabric for each."""

from __future__ import annotations

import contextlib
import dataclasses
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

# Compiling is what takes the time here.
FAST = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

TOKENS, TOP_K, HIDDEN = 6, 2, 16
REPEATS = 20  # of calls that XLA may start in any order
FEW = 5
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

    def layers(self, *scales: float) -> np.ndarray:
        """What `layer` gives, once for each scale: every row times a factor of its own."""
        experts_per_rank = -(-self.experts_in_all // self.ranks)
        factor = (self.weights * 2.0 ** (self.experts // experts_per_rank % 2)).sum(-1)
        return np.asarray(
            self.x * (np.prod(scales) * factor[..., None] ** len(scales)), self.x.dtype
        )


def layer(moe: jf.moe.ExpertParallel, x: Any, e: Any, w: Any, scale: Any, **options: Any) -> Any:
    """Rows double on odd ranks, so that it matters where they go."""
    r = moe.dispatch(x, e, w, **options)
    scale = scale * (1 + lax.axis_index("ep") % 2)
    return moe.combine(r.tokens * scale.astype(r.tokens.dtype), r, **options)


# What the oracle says. The test's own process asks it, once for all: its compilation takes long.


@dataclasses.dataclass(frozen=True)
class Forward:
    """A dispatch, and what combine gives for twice its rows, weighted and not."""

    tokens: np.ndarray
    weights: np.ndarray
    group_sizes: np.ndarray
    out: np.ndarray
    plain: np.ndarray


@dataclasses.dataclass(frozen=True)
class Expected:
    forward: tuple[Forward, ...]
    gradients: tuple[np.ndarray, np.ndarray]


def forward_inputs(count: int) -> tuple[Inputs, ...]:
    return (
        Inputs(count, kind="holes"),
        Inputs(count, kind="one_rank", dtype=jnp.bfloat16, seed=1),
    )


def gradient_inputs(count: int) -> tuple[Inputs, np.ndarray]:
    inputs = Inputs(count, kind="duplicates", seed=2)
    return inputs, np.random.default_rng(2).integers(-2, 3, inputs.x.shape).astype(np.float32)


def gradient_of(of_layer: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda x, e, w, c: (of_layer(x, e, w) * c).sum(), argnums=(0, 2))


def expected(count: int) -> Expected:
    """For `count` ranks."""
    forwards = []
    for inputs in forward_inputs(count):
        x, e, w = map(jnp.asarray, inputs.arrays())
        r = oracle.dispatch(x, e, w, num_experts=inputs.experts_in_all)
        out, plain = (
            oracle.combine(2 * r.tokens, r, tokens=TOKENS, weighted=weighted)
            for weighted in (True, False)
        )
        forwards.append(Forward(*map(np.asarray, (r.tokens, r.weights, r.group_sizes, out, plain))))
    inputs, c = gradient_inputs(count)

    def square(x, e, w):
        r = oracle.dispatch(x, e, w, num_experts=inputs.experts_in_all)
        return oracle.combine(r.tokens * r.tokens, r, tokens=TOKENS)

    gradients = jax.jit(gradient_of(square))(*inputs.arrays(), c)
    return Expected(tuple(forwards), tuple(map(np.asarray, gradients)))


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
