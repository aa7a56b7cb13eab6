"""Training over all ranks: placement, gradients, Adam; each step is one jitted ``shard_map``."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jax_fabric.demo import model
from jax_fabric.demo.config import DemoConfig

_BATCH = PartitionSpec(model.AXIS)
_REPLICATED = PartitionSpec()
_PER_LAYER = PartitionSpec(None, model.AXIS)

# Of Adam.
_MEAN_DECAY = 0.9
_SQUARE_DECAY = 0.99
_SMALL = 1e-8


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """What a step turns into the next.

    Attributes:
      parameters: of the model.
      mean: running mean of the gradients, shaped like the parameters.
      square: running mean of their squares.
      step: float32[], steps done.
    """

    parameters: model.Parameters
    mean: model.Parameters
    square: model.Parameters
    step: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Evaluation:
    """All that one batch says about a model.

    Attributes:
      loss: float32[], mean over the characters of all ranks.
      gradients: shaped like the parameters.
      logits: float32[rows, S, V].
      experts: int32[D, tokens, K], where tokens went.
      probabilities: float32[D, tokens, E], the router's.
    """

    loss: jax.Array
    gradients: model.Parameters
    logits: jax.Array
    experts: jax.Array
    probabilities: jax.Array


class Trainer:
    """A model's training over a mesh.

    Attributes:
      mesh: over which everything is spread.
      step: jitted, (state, batch) to (state, :class:`Evaluation` of the batch before the step);
        batches are int32[N * B, S + 1], the old state is given up.
    """

    def __init__(self, config: DemoConfig, mesh: jax.sharding.Mesh, moe_layer: model.MoeLayer):
        """Makes the step; it compiles at its first call."""
        self._config = config
        self.mesh = mesh
        self._moe_layer = moe_layer
        parameters = jax.eval_shape(lambda: model.init_parameters(config, 1))
        self._specs = model.partition_specs(parameters)
        state_specs = State(self._specs, self._specs, self._specs, _REPLICATED)
        evaluation_specs = Evaluation(_REPLICATED, self._specs, _BATCH, _PER_LAYER, _PER_LAYER)
        step = jax.shard_map(
            self._step,
            mesh=mesh,
            in_specs=(state_specs, _BATCH),
            out_specs=(state_specs, evaluation_specs),
        )
        self.step = jax.jit(step, donate_argnums=0)

    def place(self, tree: Any, specs: Any) -> Any:
        """Spreads host arrays over the mesh; every process gives the whole arrays."""

        def one(value: np.ndarray, spec: PartitionSpec) -> jax.Array:
            sharding = NamedSharding(self.mesh, spec)
            return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

        return jax.tree.map(one, tree, specs)

    def place_batch(self, batch: np.ndarray) -> jax.Array:
        """Gives each rank its rows of int32[N * B, S + 1]."""
        return self.place(batch, _BATCH)

    def initial_state(self, parameters: model.Parameters) -> State:
        """Returns the state before the first step, from parameters in host memory."""
        zeros = jax.tree.map(np.zeros_like, parameters)
        return State(
            self.place(parameters, self._specs),
            self.place(zeros, self._specs),
            self.place(zeros, self._specs),
            self.place(np.zeros((), np.float32), _REPLICATED),
        )

    # The following see one rank's part.

    def _evaluate(self, parameters: model.Parameters, batch: jax.Array) -> Evaluation:
        """Loss and gradients of the mean over all ranks."""
        config = self._config

        def share_of_loss(parameters: model.Parameters) -> tuple[jax.Array, Any]:
            inputs, targets = batch[:, :-1], batch[:, 1:]
            logits, routed = model.forward(parameters, inputs, self._moe_layer, config=config)
            total = model.sum_of_losses(logits, targets)
            return total / (config.ranks * config.tokens), (logits, *routed)

        # Each rank differentiates its own share of the loss in its own copy of the parameters. The
        # gradients of experts need no sum: their rows came from all ranks, and so did the gradients
        # of those rows.
        copies = jax.tree.map(
            lambda p, spec: p if spec != _REPLICATED else lax.pcast(p, model.AXIS, to="varying"),
            parameters,
            self._specs,
        )
        (share, extras), gradients = jax.value_and_grad(share_of_loss, has_aux=True)(copies)
        gradients = jax.tree.map(
            lambda g, spec: g if spec != _REPLICATED else lax.psum(g, model.AXIS),
            gradients,
            self._specs,
        )
        return Evaluation(lax.psum(share, model.AXIS), gradients, *extras)

    def _step(self, state: State, batch: jax.Array) -> tuple[State, Evaluation]:
        evaluation = self._evaluate(state.parameters, batch)
        return adam(state, evaluation.gradients, self._config.learning_rate), evaluation


def adam(state: State, gradients: model.Parameters, learning_rate: float) -> State:
    """One step of Adam."""
    step = state.step + 1
    mean = jax.tree.map(lambda m, g: m + (1 - _MEAN_DECAY) * (g - m), state.mean, gradients)
    square = jax.tree.map(
        lambda s, g: s + (1 - _SQUARE_DECAY) * (g * g - s), state.square, gradients
    )
    mean_scale = 1 / (1 - _MEAN_DECAY**step)
    square_scale = 1 / (1 - _SQUARE_DECAY**step)
    parameters = jax.tree.map(
        lambda p, m, s: p - learning_rate * m * mean_scale / (jnp.sqrt(s * square_scale) + _SMALL),
        state.parameters,
        mean,
        square,
    )
    return State(parameters, mean, square, step)


def oracle_evaluation(
    config: DemoConfig, parameters: model.Parameters, batch: np.ndarray, experts: np.ndarray
) -> Evaluation:
    """The same on one device without any exchange, with tokens sent where they were sent.

    Args:
      config: of the model.
      parameters: whole, in host memory.
      batch: int32[N * B, S + 1], of all ranks.
      experts: int32[D, N * T, K]. Given, because two experts that a router likes equally well may
        swap by rounding alone.
    """

    def mean_loss(parameters: model.Parameters) -> tuple[jax.Array, Any]:
        logits, routed = model.forward(
            parameters,
            batch[:, :-1],
            model.oracle_layer(config.experts),
            config=config,
            routing=experts,
        )
        return model.sum_of_losses(logits, batch[:, 1:]) / batch[:, 1:].size, (logits, *routed)

    (loss, extras), gradients = jax.jit(jax.value_and_grad(mean_loss, has_aux=True))(parameters)
    return Evaluation(loss, gradients, *extras)
