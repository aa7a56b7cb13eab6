"""A small transformer over characters whose feed-forward layers are mixtures of experts.

The model does not know how tokens reach their experts: it is given an :class:`MoeLayer`. One goes
through jax_fabric (:func:`fabric_layer`), one computes every expert for every token on one device
(:func:`oracle_layer`); whatever they do must be the same.

Letters in shapes: B rows of a batch, S characters of a row, T = B * S tokens, V characters of the
alphabet, H hidden, F inner elements of an expert, E experts (P of them in the parameters: rounded
up to a multiple of the ranks), K experts of a token, D layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jax_fabric.demo.config import DemoConfig
from jax_fabric.moe import ExpertParallel
from jax_fabric.testing import oracle

Parameters = dict[str, Any]

# (x [T, H], experts int32[T, K], weights float32[T, K], w_in [L, H, 2F], w_out [L, F, H]) -> [T,
# H], with L the experts of one rank inside shard_map, and all P of them for the oracle.
MoeLayer = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]

AXIS = "ep"
_EXPERT_PARAMETERS = ("expert_in", "expert_out")
_SMALL = 1e-6


def init_parameters(config: DemoConfig, alphabet: int) -> Parameters:
    """Draws the parameters, float32 in host memory, the same in every process.

    Returns:
      ``embed`` [V, H], ``position`` [S, H], ``final_norm`` [H], ``unembed`` [H, V], and ``blocks``
      with a leading axis D: ``attention_norm`` [H], ``qkv`` [H, 3H], ``attention_out`` [H, H],
      ``moe_norm`` [H], ``router`` [H, E], ``expert_in`` [P, H, 2F], ``expert_out`` [P, F, H].
    """
    rng = np.random.default_rng(config.seed)
    hidden, inner, layers = config.hidden, config.expert_hidden, config.layers
    experts = config.ranks * config.experts_per_rank

    def normal(*shape: int, fan_in: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)

    return {
        "embed": normal(alphabet, hidden, fan_in=1),
        "position": normal(config.sequence, hidden, fan_in=4),
        "blocks": {
            "attention_norm": np.ones((layers, hidden), np.float32),
            "qkv": normal(layers, hidden, 3 * hidden, fan_in=hidden),
            "attention_out": normal(layers, hidden, hidden, fan_in=hidden),
            "moe_norm": np.ones((layers, hidden), np.float32),
            "router": normal(layers, hidden, config.experts, fan_in=hidden),
            "expert_in": normal(layers, experts, hidden, 2 * inner, fan_in=hidden),
            "expert_out": normal(layers, experts, inner, hidden, fan_in=inner),
        },
        "final_norm": np.ones((hidden,), np.float32),
        "unembed": normal(hidden, alphabet, fan_in=hidden),
    }


def partition_specs(parameters: Parameters) -> Parameters:
    """Returns where parameters lie: experts spread over the ranks, all others on every rank."""

    def spec(path: tuple[Any, ...], _: Any) -> PartitionSpec:
        is_expert = path[-1].key in _EXPERT_PARAMETERS
        return PartitionSpec(None, AXIS) if is_expert else PartitionSpec()

    return jax.tree_util.tree_map_with_path(spec, parameters)


def forward(
    parameters: Parameters,
    inputs: jax.Array,
    moe_layer: MoeLayer,
    *,
    config: DemoConfig,
    routing: jax.Array | None = None,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Predicts the next character at every place.

    Args:
      parameters: as :func:`init_parameters` returns them, or a rank's shards.
      inputs: int32[B, S].
      moe_layer: brings tokens to their experts and back.
      config: of the model.
      routing: int32[D, T, K], experts to use in place of those that the router likes best (its
        probabilities for them remain the weights).

    Returns:
      Logits float32[B, S, V]; experts int32[D, T, K] used and the router's probabilities
      float32[D, T, E].
    """
    batch, sequence = inputs.shape
    dtype = jnp.dtype(config.dtype)
    x = parameters["embed"][inputs] + parameters["position"]
    x = x.astype(dtype)

    def block(x: jax.Array, scanned: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        p, given_experts = scanned
        x = x + attention(p, rms_norm(x, p["attention_norm"]), heads=config.heads)
        tokens = rms_norm(x, p["moe_norm"]).reshape(batch * sequence, config.hidden)
        probabilities = jax.nn.softmax(tokens.astype(jnp.float32) @ p["router"])
        if given_experts is None:
            weights, experts = lax.top_k(probabilities, config.top_k)
        else:
            experts = given_experts
            weights = jnp.take_along_axis(probabilities, experts, axis=-1)
        expert_weights = (p["expert_in"].astype(dtype), p["expert_out"].astype(dtype))
        y = moe_layer(tokens, experts, weights, *expert_weights)
        return x + y.reshape(x.shape), (experts, probabilities)

    x, routed = lax.scan(block, x, (parameters["blocks"], routing))
    x = rms_norm(x, parameters["final_norm"])
    return (x @ parameters["unembed"].astype(dtype)).astype(jnp.float32), routed


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """[..., H] scaled to a mean square of 1, computed in float32."""
    wide = x.astype(jnp.float32)
    wide *= lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + _SMALL)
    return (wide * scale).astype(x.dtype)


def attention(parameters: Parameters, x: jax.Array, *, heads: int) -> jax.Array:
    """Causal self-attention, [B, S, H] to [B, S, H]; the softmax is in float32."""
    batch, sequence, hidden = x.shape
    qkv = x @ parameters["qkv"].astype(x.dtype)
    q, k, v = jnp.moveaxis(qkv.reshape(batch, sequence, 3, heads, -1), 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / np.sqrt(hidden // heads)
    causal = np.tril(np.ones((sequence, sequence), bool))
    shares = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf)).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(batch, sequence, hidden)
    return mixed @ parameters["attention_out"].astype(x.dtype)


def gated_silu(projected: jax.Array) -> jax.Array:
    """[..., 2F] to [..., F]: one half gates the other."""
    gate, value = jnp.split(projected, 2, axis=-1)
    return jax.nn.silu(gate) * value


def fabric_layer(moe: ExpertParallel) -> MoeLayer:
    """Returns the layer that sends tokens to their experts' ranks; for use inside ``shard_map``."""

    def layer(
        x: jax.Array, experts: jax.Array, weights: jax.Array, w_in: jax.Array, w_out: jax.Array
    ) -> jax.Array:
        r = moe.dispatch(x, experts, weights)
        # Rows past the last group are unspecified. ragged_dot reads none of them, forward or
        # backward, and gives zeros for them; so nothing has to be masked here.
        inner = gated_silu(lax.ragged_dot(r.tokens, w_in, r.group_sizes))
        return moe.combine(lax.ragged_dot(inner, w_out, r.group_sizes), r)

    return layer


def oracle_layer(num_experts: int) -> MoeLayer:
    """Returns the layer that needs no exchange: every expert sees every token, on one device."""

    def layer(
        x: jax.Array, experts: jax.Array, weights: jax.Array, w_in: jax.Array, w_out: jax.Array
    ) -> jax.Array:
        def expert_fn(rows: jax.Array, expert: jax.Array) -> jax.Array:
            return gated_silu(rows @ w_in[expert]) @ w_out[expert]

        return oracle.dense_moe(x, experts, weights, expert_fn, num_experts=num_experts)

    return layer


def sum_of_losses(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """float32[]: cross-entropy in nats, summed over all places of [B, S, V] and int32[B, S]."""
    log_probabilities = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1).sum()
