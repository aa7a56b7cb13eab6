"""Layers with fresh routing, their gradients, under scan, in halves, and beside a compiler."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from checker import AXIS, Checker, factor, factors, meet, routing

import jax_fabric as jf

#: Layers of a timed program.
SCAN_LENGTH = 50

Layer = Callable[..., jax.Array]


def _forward(checker: Checker, layer: Layer, steps: int) -> None:
    step = checker.on_ranks(layer)
    for number in range(steps):
        x, experts, weights = routing(checker.sizes, number)
        out = step(checker.put(x), checker.put(experts), checker.put(weights))
        if number % max(1, steps // 50) == 0:
            checker.expect(out, x * factors(experts, weights), f"step {number}")
    jax.block_until_ready(out)


def _gradients(checker: Checker, layer: Layer, steps: int) -> None:
    def both(x, experts, weights, g):
        def loss(x, weights):
            return jnp.sum(layer(x, experts, weights) * g)

        return jax.grad(loss, (0, 1))(x, weights)

    step = checker.on_ranks(both, 2)
    for number in range(steps):
        x, experts, weights = routing(checker.sizes, number)
        g = routing(checker.sizes, number + 1000)[0]
        dx, dw = step(*(checker.put(each) for each in (x, experts, weights, g)))
        checker.expect(dx, g * factors(experts, weights), f"dx of step {number}")
        wanted = factor(experts) * (x * g).sum(1, keepdims=True)
        checker.expect(dw, wanted, f"dw of step {number}", 1e-4)


def _scan(checker: Checker, layer: Layer, steps: int) -> None:
    layers = 5

    def run(x, experts, weights):
        def body(x, operands):
            y = layer(x, *operands)
            return x + 0.01 * y, y

        return jax.lax.scan(body, x, (experts, weights))

    spec, by_layer = jax.P(AXIS), jax.P(None, AXIS)
    step = jax.jit(
        jax.shard_map(
            run,
            mesh=checker.mesh,
            in_specs=(spec, by_layer, by_layer),
            out_specs=(spec, by_layer),
        )
    )
    for number in range(steps):
        each = [routing(checker.sizes, number * layers + i) for i in range(layers)]
        experts, weights = (np.stack([part[i] for part in each]) for i in (1, 2))
        x, ys = step(
            checker.put(each[0][0]), checker.put(experts, by_layer), checker.put(weights, by_layer)
        )
        wanted, wanted_ys = each[0][0], []
        for i in range(layers):
            wanted_ys.append(wanted * factors(experts[i], weights[i]))
            wanted = wanted + 0.01 * wanted_ys[-1]
        checker.expect(x, wanted, f"scan {number}")
        checker.expect(ys, np.stack(wanted_ys), f"ys of scan {number}")


def forward(checker: Checker, steps: int) -> None:
    """Fresh routing in every step; one compiled program."""
    _forward(checker, checker.layer, steps)


def gradients(checker: Checker, steps: int) -> None:
    """Of x and of the weights."""
    _gradients(checker, checker.layer, steps)


def scan(checker: Checker, steps: int) -> None:
    """Layers under lax.scan, whose slices and updates XLA likes to clone calls for."""
    _scan(checker, checker.layer, steps)


def split(checker: Checker, steps: int) -> None:
    """The same three of exchanges in halves."""
    _forward(checker, checker.split_layer, steps)
    _gradients(checker, checker.split_layer, steps)
    _scan(checker, checker.split_layer, steps)


def two_batches(checker: Checker, steps: int) -> None:
    """Two batches at once, on a channel each, the halves of one between those of the other."""
    moe = checker.moe

    def both(x, experts, weights):
        parts = [(x, experts, weights), (-2 * x, experts[::-1], weights[::-1])]
        started = [moe.dispatch_start(*each, channel=i) for i, each in enumerate(parts)]
        back = []
        for i, pending in enumerate(started):
            received = moe.dispatch_done(pending, overlap=parts[1 - i][0].sum())
            back.append(moe.combine_start(checker.run_experts(received), received, channel=i))
        return tuple(moe.combine_done(each) for each in reversed(back))

    step = checker.on_ranks(both, 2)
    for number in range(steps):
        x, experts, weights = routing(checker.sizes, number)
        second, first = step(*(checker.put(each) for each in (x, experts, weights)))
        total = factors(experts, weights)
        checker.expect(first, x * total, f"first batch of step {number}")
        by_rank = total.reshape(checker.ranks, -1, 1)[:, ::-1].reshape(-1, 1)
        checker.expect(second, -2 * x * by_rank, f"second batch of step {number}")


def quantised(checker: Checker, steps: int) -> None:
    """Rows travel in eight bits; in halves they give the same bits as whole exchanges."""
    other = checker.with_context(dispatch_dtype=jnp.float8_e4m3fn, tokens_dtype=jnp.float32)

    def both(x, experts, weights):
        whole = other.layer(x, experts, weights)
        return whole, other.split_layer(x + 0 * whole, experts, weights)

    step = other.on_ranks(both, 2)
    for number in range(steps):
        x, experts, weights = routing(checker.sizes, number)
        whole, split = step(*(checker.put(each) for each in (x, experts, weights)))
        # Three bits of mantissa.
        checker.expect(whole, x * factors(experts, weights), f"quantised, step {number}", 2**-4)
        for mine, others in zip(whole.addressable_shards, split.addressable_shards, strict=True):
            np.testing.assert_array_equal(mine.data, others.data, f"halves of step {number}")


def memory(checker: Checker, steps: int) -> None:
    """What a rank says that it has allocated is what the driver says is gone, but for rounding."""
    del steps
    config = checker.moe.config
    found = checker.moe.memory_bytes()
    # Two parities of a slot for each source and channel, and workspaces beside them.
    assert found > config.memory_bytes(), (found, config.memory_bytes())
    before = _free_bytes()
    other = jf.moe.ExpertParallel(
        checker.fabric,
        axis_name=AXIS,
        num_experts=config.num_experts,
        top_k=config.top_k,
        max_tokens=2048,
        hidden=2048,
        dtype=jnp.float32,
    )
    if jax.process_count() == 1:
        missing = before - _free_bytes()
        assert abs(missing - other.memory_bytes()) < 16 << 20, (missing, other.memory_bytes())


def _free_bytes() -> int:
    """Of the first GPU."""
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    return int(subprocess.check_output(command, text=True).split()[0]) << 20


def compiling(checker: Checker, steps: int) -> None:
    """Another thread compiles and loads programs while this one exchanges."""
    stop = threading.Event()

    def compile_on_and_on():
        number = 0
        while not stop.is_set():
            number += 1
            value = jnp.arange(64.0) + number
            jax.jit(lambda v, n=number: v * n + 0.5)(value).block_until_ready()

    thread = threading.Thread(target=compile_on_and_on)
    thread.start()
    try:
        forward(checker, steps)
    finally:
        stop.set()
        thread.join()


def _times_us(step: Callable[..., jax.Array], operands: list[jax.Array], steps: int) -> list[float]:
    """Of scans of SCAN_LENGTH: the time of one iteration in each, microseconds, sorted."""
    step(*operands).block_until_ready()
    times = []
    for _ in range(max(5, steps)):
        begin = time.perf_counter()
        step(*operands).block_until_ready()
        times.append((time.perf_counter() - begin) / SCAN_LENGTH * 1e6)
    return sorted(times)


def _scanned(layer: Layer) -> Layer:
    """Again and again on what it has made of x."""

    def run(x, experts, weights):
        def body(x, _):
            return layer(x, experts, weights) * 0.01, None

        return jax.lax.scan(body, x, None, length=SCAN_LENGTH)[0]

    return run


def _plain_layers(experts: int) -> dict[str, Layer]:
    """What an exchange on one device comes to in plain JAX: rows in the order of experts, and back.

    Both ways to sum a token's rows that are in use: where they go to, or where they come from. The
    rows are there in between, as experts would find them, and not a part of one large fusion.
    """

    def by_expert(x, choices):
        # Choices that are not routed go last, with weight 0.
        keys = jnp.where(choices < 0, experts, choices).reshape(-1)
        order = jnp.argsort(keys)
        return order, jax.lax.optimization_barrier(x[order // choices.shape[1]])

    def scattered(x, choices, weights):
        order, rows = by_expert(x, choices)
        rows = rows * jnp.where(choices < 0, 0, weights).reshape(-1)[order, None]
        total = jnp.zeros(x.shape, jnp.float32).at[order // choices.shape[1]].add(rows)
        return total.astype(x.dtype)

    def gathered(x, choices, weights):
        order, rows = by_expert(x, choices)
        places = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))
        rows = rows[places].reshape(*choices.shape, -1)
        weights = jnp.where(choices < 0, 0, weights)
        return jnp.einsum("tkh,tk->th", rows, weights).astype(x.dtype)

    return {"gather and scatter": scattered, "gather and gather": gathered}


def _bytes_moved(checker: Checker, experts: np.ndarray) -> int:
    """By all kernels of a dispatch and a combine on all ranks, in bfloat16."""
    routed = experts >= 0
    per_rank = checker.moe.config.experts_per_rank
    ranks = np.where(routed, experts // per_rank, -1)
    rows = sum(int((ranks == rank).any(axis=1).sum()) for rank in range(checker.ranks))
    # Tokens are read and written, messages written and read both ways, and so are experts' rows.
    return 2 * checker.sizes.hidden * (2 * len(experts) + 4 * rows + 2 * int(routed.sum()))


def timed(checker: Checker, steps: int) -> None:
    """Dispatch + combine of bfloat16 rows, with nothing in between, by the host's clock.

    Beside it, one process computes the same for the tokens of all ranks in plain JAX, alone on the
    device.
    """

    def layer(x, experts, weights):
        received = checker.moe.dispatch(x, experts, weights)
        return checker.moe.combine(received.tokens, received)

    arrays = routing(checker.sizes, 1)
    arrays = (arrays[0].astype(jnp.bfloat16), *arrays[1:])
    step = checker.on_ranks(_scanned(layer))
    times = _times_us(step, [checker.put(each) for each in arrays], steps)
    if jax.process_count() > 1:
        meet("all are timed")
    if jax.process_index() == 0:
        _compare_with_plain_jax(checker, arrays, times, steps)
    if jax.process_count() > 1:
        meet("all is timed")


def _compare_with_plain_jax(
    checker: Checker, arrays: tuple[np.ndarray, ...], times: list[float], steps: int
) -> None:
    """Of `timed`: by one process, while the others are idle."""
    alone = [jax.device_put(each, jax.local_devices()[0]) for each in arrays]
    plain = {
        name: _times_us(jax.jit(_scanned(each)), alone, steps)
        for name, each in _plain_layers(checker.sizes.experts).items()
    }
    peer = min(plain, key=lambda name: np.median(plain[name]))
    median, peer_us = np.median(times), np.median(plain[peer])
    print(
        f"  dispatch + combine in {median:.1f} us (median of {len(times)} scans of {SCAN_LENGTH}); "
        + ", ".join(f"{name} in {np.median(each):.1f} us" for name, each in plain.items())
    )
    checker.note(
        {
            "case": "dispatch + combine" + (", staged" if checker.force_staged else ""),
            "ranks": checker.ranks,
            "tokens": checker.sizes.tokens,
            "hidden": checker.sizes.hidden,
            "metric": "time",
            "unit": "us",
            "median": round(float(median), 1),
            "min": round(times[0], 1),
            "max": round(times[-1], 1),
            "n": len(times),
            "bytes": _bytes_moved(checker, arrays[1]),
            "peer": f"{peer} in plain JAX",
            "peer_us": round(float(peer_us), 1),
            "ratio": round(float(peer_us / median), 3),
        }
    )
