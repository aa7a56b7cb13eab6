"""What the demonstration proves: the exchange and the model against oracles that need none.

Every process checks what it can see, its own ranks; :func:`worst_of_all` brings the errors
together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec

from jax_fabric.demo import model, training
from jax_fabric.demo.config import DemoConfig
from jax_fabric.moe import ExpertParallel
from jax_fabric.testing import oracle, routing

# Largest error accepted, as a share of the largest value of the array. float32: sums in another
# order. bfloat16: a unit in the last place is 2**-8 of the value, and differences add up over the
# layers.
_TOLERANCES = {
    "float32": {"sum": 1e-6, "logits": 1e-5, "loss": 1e-6, "gradient": 5e-5, "tie": 1e-5},
    "bfloat16": {"sum": 5e-3, "logits": 2e-2, "loss": 2e-3, "gradient": 5e-2, "tie": 1e-2},
}
_WEIGHT_TOLERANCE = 1e-6  # float32 always; sums of the weights of an expert that was named twice
_SHARE_OF_LOSS = 0.2
_STEPS_FOR_THAT = 40


@dataclasses.dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
      name: what was compared, and with what.
      error: how far apart they are; NaN when something was not a number.
      limit: the largest `error` that passes.
      note: what the reader should know about it.
    """

    name: str
    error: float
    limit: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the error is within the limit; a NaN is not."""
        return bool(self.error <= self.limit)


def relative_error(array: jax.Array, expected: np.ndarray) -> float:
    """Largest difference over largest expected value, of the shards that this process holds."""
    expected = np.asarray(expected, np.float32)
    scale = float(np.abs(expected).max(initial=0)) or 1.0
    differences = [
        np.abs(np.asarray(shard.data, np.float32) - expected[shard.index]).max(initial=0)
        for shard in array.addressable_shards
    ]
    return float(np.max(differences)) / scale  # NaN if any is


def worst_of_all(checks: list[Check]) -> list[Check]:
    """Returns the checks with the largest error that any process measured."""
    if jax.process_count() == 1:
        return checks
    errors = multihost_utils.process_allgather(np.array([check.error for check in checks]))
    worst = np.max(errors, axis=0)
    return [
        dataclasses.replace(check, error=float(error))
        for check, error in zip(checks, worst, strict=True)
    ]


def computed_once(function: Callable[[], Any]) -> Any:
    """What `function` returns, a pytree of arrays: computed by the first process, sent to all.

    The other processes would only take its cores away.
    """
    if jax.process_count() == 1:
        return function()
    if jax.process_index() == 0:
        result = jax.tree.map(np.asarray, function())
    else:
        shapes = jax.eval_shape(function)
        result = jax.tree.map(lambda each: np.zeros(each.shape, each.dtype), shapes)
    return multihost_utils.broadcast_one_to_all(result)


def check_exchange(
    config: DemoConfig, moe: ExpertParallel, trainer: training.Trainer
) -> list[Check]:
    """Dispatches and combines random rows with an awkward routing.

    Tokens name experts twice and name experts that do not exist; rows past the last one that
    dispatch returned are overwritten with NaN before combine sees them.
    """
    sizes = dict(
        ranks=config.ranks, tokens=config.tokens, experts=config.experts, top_k=config.top_k
    )
    routed = routing.generate("duplicates", **sizes, seed=config.seed)
    holes = routing.generate("holes", **sizes, seed=config.seed)
    outside = (holes.experts < 0) | (holes.experts >= config.experts)
    outside[:, ::2] = False  # with two experts a token, one hole leaves nothing to name twice
    experts = np.where(outside, holes.experts, routed.experts)
    rng = np.random.default_rng(config.seed)
    shape = (config.ranks, config.tokens, config.hidden)
    xs = np.asarray(jnp.asarray(rng.standard_normal(shape), config.dtype))

    def exchange(x: jax.Array, experts: jax.Array, weights: jax.Array) -> Any:
        r = moe.dispatch(x, experts, weights)
        used = (jnp.arange(moe.capacity) < r.group_sizes.sum())[:, None]
        y = jnp.where(used, 2 * r.tokens, jnp.nan)
        return r.tokens, r.weights, r.group_sizes, moe.combine(y, r)

    spec = PartitionSpec(model.AXIS)
    inputs = [array.reshape(-1, array.shape[-1]) for array in (xs, experts, routed.weights)]
    tokens, weights, group_sizes, out = jax.jit(
        jax.shard_map(exchange, mesh=trainer.mesh, in_specs=spec, out_specs=spec)
    )(*(trainer.place(array, spec) for array in inputs))

    def by_oracle() -> tuple[oracle.Dispatched, jax.Array]:
        want = oracle.dispatch(
            jnp.asarray(xs),
            jnp.asarray(experts),
            jnp.asarray(routed.weights),
            num_experts=config.experts,
            capacity=moe.capacity,
        )
        return want, oracle.combine(2 * want.tokens, want, tokens=config.tokens)

    want, want_out = computed_once(by_oracle)
    want_out = np.asarray(want_out, np.float32).reshape(-1, config.hidden)
    used = np.asarray(want.source).reshape(-1) >= 0
    want_tokens = np.asarray(want.tokens).reshape(-1, config.hidden)
    want_weights = np.where(used, np.asarray(want.weights).reshape(-1), 0)
    want_sizes = np.asarray(want.group_sizes).reshape(-1)

    wrong_rows = sum(
        _different_bits(np.asarray(shard.data), want_tokens[shard.index])[
            used[shard.index[0]]
        ].sum()
        for shard in tokens.addressable_shards
    )
    wrong_sizes = sum(
        (np.asarray(shard.data) != want_sizes[shard.index]).sum()
        for shard in group_sizes.addressable_shards
    )
    wrong_weights = max(
        np.abs(np.asarray(shard.data) - want_weights[shard.index])[used[shard.index]].max(initial=0)
        for shard in weights.addressable_shards
    )
    rows = int(used.sum())
    return [
        Check(
            "dispatch: rows, bit by bit", float(wrong_rows), 0, f"{rows} rows; wrong ones counted"
        ),
        Check("dispatch: group sizes", float(wrong_sizes), 0, "wrong ones counted"),
        Check("dispatch: weights", float(wrong_weights), _WEIGHT_TOLERANCE),
        Check(
            "combine: sums",
            relative_error(out, want_out),
            _TOLERANCES[config.dtype]["sum"],
            "NaN in all rows past the last",
        ),
    ]


def _different_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """bool[rows]: the rows of [rows, H] that are not the same bit by bit."""
    bits = np.dtype(f"u{a.dtype.itemsize}")
    return (a.view(bits) != b.view(bits)).any(axis=-1)


def check_model(
    config: DemoConfig,
    parameters: model.Parameters,
    batch: np.ndarray,
    measured: training.Evaluation,
) -> list[Check]:
    """Compares logits, loss and every gradient of one batch with those of one device.

    Args:
      config: of the model.
      parameters: whole, in host memory.
      batch: int32[N * B, S + 1], of all ranks.
      measured: what the ranks computed.
    """
    tolerance = _TOLERANCES[config.dtype]
    experts = gather(measured.experts)
    want = computed_once(lambda: training.oracle_evaluation(config, parameters, batch, experts))

    errors = jax.tree_util.tree_leaves_with_path(
        jax.tree.map(relative_error, measured.gradients, want.gradients)
    )
    # NaN sorts as the worst.
    path, worst = max(errors, key=lambda item: np.nan_to_num(item[1], nan=np.inf))
    name = ".".join(key.key for key in path)
    loss_error = abs(float(measured.loss) - float(want.loss)) / float(want.loss)
    return [
        Check("forward: logits", relative_error(measured.logits, want.logits), tolerance["logits"]),
        Check("forward: loss", loss_error, tolerance["loss"], f"{float(want.loss):.5f} nats"),
        Check(
            "forward: routing",
            _preference_lost(np.asarray(want.probabilities), experts),
            tolerance["tie"],
            "a choice may differ from the oracle's in a tie only",
        ),
        Check(
            f"gradients: all {len(errors)} arrays", worst, tolerance["gradient"], f"worst: {name}"
        ),
    ]


def _preference_lost(probabilities: np.ndarray, experts: np.ndarray) -> float:
    """How much less probable the least liked expert chosen is than the best that could be had.

    Args:
      probabilities: float32[D, tokens, E], the oracle's.
      experts: int32[D, tokens, K], those chosen.
    """
    chosen = np.take_along_axis(probabilities, experts, axis=-1).min(axis=-1)
    best = np.sort(probabilities, axis=-1)[..., -experts.shape[-1]]
    return float(np.max(best - chosen))


def gather(array: jax.Array) -> np.ndarray:
    """Returns the whole array, from all processes, in host memory."""
    if array.is_fully_addressable:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def check_training(losses: list[float]) -> Check:
    """The loss has fallen by a fifth, or by less where there were fewer than 40 steps."""
    first, last = losses[0], float(np.mean(losses[-max(1, len(losses) // 10) :]))
    wanted = _SHARE_OF_LOSS * min(1.0, len(losses) / _STEPS_FOR_THAT)
    return Check(
        "training: loss at the end / at the start",
        last / first,
        1 - wanted,
        f"{first:.2f} to {last:.2f} nats in {len(losses)} steps",
    )
