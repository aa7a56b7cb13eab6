"""What JAX and XLA do with programs around exchanges, and how often exchanges run because of it."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from checker import Checker, factor, factors, routing

import jax_fabric as jf

#: As they stand in the text of a compiled program.
COLLECTIVES = re.compile(r"\b(all-reduce|all-gather|all-to-all|reduce-scatter|collective-\w+)\b")


def vmap(checker: Checker, steps: int) -> None:
    """Two halves of the rows as a batch, each with groups of its own; and gradients of that."""
    batch = 2

    def both(x, experts, weights, g):
        def fold(each):
            return each.reshape(batch, -1, each.shape[-1])

        def loss(x, weights):
            out = jax.vmap(checker.layer)(fold(x), fold(experts), fold(weights))
            return jnp.sum(out * fold(g)), out.reshape(g.shape)

        gradients, out = jax.grad(loss, (0, 1), has_aux=True)(x, weights)
        return out, *gradients

    step = checker.on_ranks(both, 3)
    for number in range(steps):
        x, experts, weights = routing(checker.sizes, number)
        g = routing(checker.sizes, number + 1000)[0]
        out, dx, dw = step(*(checker.put(each) for each in (x, experts, weights, g)))
        total = factors(experts, weights)
        checker.expect(out, x * total, f"vmap, step {number}")
        checker.expect(dx, g * total, f"vmap, dx of step {number}")
        wanted = factor(experts) * (x * g).sum(1, keepdims=True)
        checker.expect(dw, wanted, f"vmap, dw of step {number}", 1e-4)


def donated(checker: Checker, steps: int) -> None:
    """The result takes the place of x, which is gone then."""
    step = checker.on_ranks(
        lambda x, experts, weights: x + 0.01 * checker.layer(x, experts, weights), donate_argnums=0
    )
    x = routing(checker.sizes, 0)[0]
    wanted, now = x, checker.put(x)
    for number in range(steps):
        _, experts, weights = routing(checker.sizes, number)
        before = now
        now = step(before, checker.put(experts), checker.put(weights))
        assert before.is_deleted(), "x was not donated"
        wanted = wanted + 0.01 * wanted * factors(experts, weights)
        wanted = wanted / 2 if number % 4 == 3 else wanted
        now = now / 2 if number % 4 == 3 else now
        checker.expect(now, wanted, f"donated, step {number}", 1e-4)


def profiled(checker: Checker, steps: int) -> None:
    """Under the profiler, which begins and ends while programs are under way."""
    step = checker.on_ranks(checker.layer)

    def run(first: int) -> None:
        for number in range(first, first + steps):
            x, experts, weights = routing(checker.sizes, number)
            out = step(checker.put(x), checker.put(experts), checker.put(weights))
            checker.expect(out, x * factors(experts, weights), f"profiled, step {number}")

    run(0)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run(steps)
        traces = list(Path(folder).rglob("*.xplane.pb"))
        assert traces and all(trace.stat().st_size > 0 for trace in traces), traces
    run(2 * steps)


def _programs(checker: Checker) -> dict[str, tuple[Callable, int]]:
    """Programs of x, experts and weights, and how many calls each makes."""
    parts = 4
    layer, split_layer = checker.layer, checker.split_layer

    def over_scan(layer, x, experts, weights):
        stacked = [jnp.stack([each] * parts) for each in (x, experts, weights)]

        def body(carry, operands):
            y = layer(operands[0] + 0 * carry, *operands[1:])
            return carry + y, y

        total, ys = jax.lax.scan(body, 0 * x, tuple(stacked))
        return (total + ys.sum(0)) / (2 * parts)

    def sliced(layer, x, experts, weights):
        twice = [jnp.concatenate([each, each]) for each in (x, experts, weights)]

        def body(i, total):
            operands = [jax.lax.dynamic_slice_in_dim(each, i, len(x)) for each in twice]
            return total + jnp.roll(layer(*operands), i, 0)

        return jax.lax.fori_loop(0, parts, body, 0 * x) / parts

    def updated(layer, x, experts, weights):
        def body(i, whole):
            row = layer(x, experts, weights)[None]
            return jax.lax.dynamic_update_slice_in_dim(whole, row, i, 0)

        whole = jnp.zeros((parts, *x.shape), x.dtype) + 0 * x
        return jax.lax.fori_loop(0, parts, body, whole).mean(0)

    def gradient(layer, x, experts, weights):
        value, dx = jax.value_and_grad(lambda x: jnp.sum(layer(x, experts, weights)))(x)
        return dx * x + 0 * value

    def unrolled(layer, x, experts, weights):
        first = layer(x / 2, experts, weights)
        return first + layer(x / 2 + 0 * first, experts, weights)

    programs = {}
    for name, each in (("", layer), ("split ", split_layer)):
        for function, calls in (
            (over_scan, 2 * parts),
            (sliced, 2 * parts),
            (updated, 2 * parts),
            (gradient, 4),
            (unrolled, 4),
        ):
            programs[name + function.__name__] = (
                lambda *operands, f=function, e=each: f(e, *operands),
                calls,
            )
    return programs


def counted(checker: Checker, steps: int) -> None:
    """No call runs more often than the program says, nor is there a collective in it.

    How often is known from the numbers that the device gives to exchanges: a dispatch before and
    one after say theirs.
    """
    probe = checker.on_ranks(lambda *operands: checker.moe.dispatch(*operands).token)
    rounds = checker.moe.config.max_rounds

    def last_exchange(operands: Sequence[jax.Array]) -> int:
        (number,) = {int(shard.data[0]) for shard in probe(*operands).addressable_shards}
        return number

    x, experts, weights = routing(checker.sizes, 1)
    operands = [checker.put(each) for each in (x, experts, weights)]
    wanted = x * factors(experts, weights)
    for name, (function, calls) in _programs(checker).items():
        compiled = checker.on_ranks(function).lower(*operands).compile()
        found = COLLECTIVES.findall(compiled.as_text())
        assert not found, f"{name}: compiled to {found}"
        # Again and again: XLA records programs from some run on.
        for number in range(min(steps, 5)):
            before = last_exchange(operands)
            out = compiled(*operands)
            ran = last_exchange(operands) - before - rounds
            assert ran == calls * rounds, f"{name}, run {number}: {ran} exchanges"
            checker.expect(out, wanted, name)
            np.testing.assert_equal(out.shape, x.shape)


def watched(checker: Checker, steps: int) -> None:
    """The host hears how far a program is, layer by layer, in order; results are what they are."""
    layers = 4
    heard: list[tuple[int, int]] = []
    watcher = checker.fabric.watcher(lambda old, new: heard.append((old, new)), initial=1)

    def run(x, experts, weights, first):
        def body(x, layer):
            y = checker.layer(x, experts, weights)
            return jf.bump(watcher, first[0] + layer, x + 0.01 * y), None

        return jax.lax.scan(body, x, jnp.arange(layers))[0]

    step = checker.on_ranks(run)
    for number in range(steps):
        x, experts, weights = routing(checker.sizes, number)
        first = np.full(checker.ranks, 10 * (number + 1), np.int32)
        out = step(*(checker.put(each) for each in (x, experts, weights, first)))
        wanted = x * (1 + 0.01 * factors(experts, weights)) ** layers
        checker.expect(out, wanted, f"watched, step {number}")
        last = 10 * (number + 1) + layers - 1
        assert watcher.load() == [last] * len(watcher.load()), (watcher.load(), last)
    deadline = time.monotonic() + 10
    while not (heard and heard[-1][1] == last) and time.monotonic() < deadline:
        time.sleep(0.001)
    watcher.close()
    new = [value for _, value in heard]
    assert new[-1] == last, heard[-5:]
    if len(watcher.load()) == 1:
        assert new == sorted(set(new)), f"out of order: {new}"
        assert [old for old, _ in heard] == [1, *new[:-1]], heard
    step(*(checker.put(each) for each in (x, experts, weights, first))).block_until_ready()
    assert len(heard) == len(new), "heard after it was closed"
