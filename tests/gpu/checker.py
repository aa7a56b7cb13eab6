"""What programs on GPUs are checked with: a layer over all ranks, and a NumPy oracle of it."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import os

import jax
import jax.numpy as jnp
import numpy as np

import jax_fabric as jf

AXIS = "ep"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a layer; T tokens, H hidden, K choices, E experts, N ranks."""

    tokens: int
    hidden: int
    top_k: int
    experts: int
    ranks: int


def routing(sizes: Sizes, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x [N * T, H], experts [N * T, K], weights [N * T, K]; some choices lead nowhere."""
    random = np.random.default_rng(seed)
    rows = sizes.ranks * sizes.tokens
    x = random.standard_normal((rows, sizes.hidden)).astype(np.float32)
    experts = np.argsort(random.random((rows, sizes.experts)), axis=1)[:, : sizes.top_k]
    experts = experts.astype(np.int32)
    experts[random.random(experts.shape) < 0.1] = -1
    if seed % 3 == 0:
        silent = random.integers(sizes.ranks)
        experts[silent * sizes.tokens : (silent + 1) * sizes.tokens] = -1
    return x, experts, random.random(experts.shape).astype(np.float32)


def factor(experts: np.ndarray) -> np.ndarray:
    """What the expert multiplies a row by."""
    return np.where(experts < 0, 0, 1 + experts % 7).astype(np.float32)


def factors(experts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """What a layer multiplies each row of x by, [..., 1]."""
    return (weights * factor(experts)).sum(-1, keepdims=True)


def meet(name: str) -> None:
    """All processes wait for each other."""
    jax._src.distributed.global_state.client.wait_at_barrier(name, 30_000)


def _node_of(arguments: argparse.Namespace, process: int) -> str | None:
    if arguments.node_processes < 2:
        return "" if arguments.node_processes else None
    # The last process, which is the one that dies, is on a node with others.
    return str((arguments.processes - 1 - process) // arguments.node_processes)


class Checker:
    """The layer on the mesh, and what it must give."""

    def __init__(self, arguments: argparse.Namespace):
        """Starts JAX, and the fabric over all devices of all processes."""
        if arguments.processes > 1:
            # JAX ends the survivors of a process, and waits for it at exit, unless told otherwise.
            loses_one = "killed" in arguments.cases or "recovered" in arguments.cases
            jax.config.update("jax_enable_recoverability", loses_one)
            jax.distributed.initialize(
                f"localhost:{arguments.port}",
                arguments.processes,
                arguments.process,
                local_device_ids=[int(each) for each in arguments.devices.split(",")],
                shutdown_timeout_seconds=20,
            )
        self.is_back = arguments.is_back
        self.force_staged = arguments.force_staged
        self._measured = arguments.measured
        self.ranks = len(jax.devices())
        self.mesh = jax.make_mesh((self.ranks,), (AXIS,))
        self.fabric = jf.Fabric(
            self.mesh,
            timeout_s=arguments.timeout_s,
            force_staged=arguments.force_staged,
            node=_node_of(arguments, arguments.process),
            rejoin=arguments.is_back,
        )
        self.sizes = Sizes(
            arguments.tokens, arguments.hidden, arguments.top_k, arguments.experts, self.ranks
        )
        self.moe = jf.moe.ExpertParallel(
            self.fabric,
            axis_name=AXIS,
            num_experts=arguments.experts,
            top_k=arguments.top_k,
            max_tokens=arguments.tokens,
            private_tokens=arguments.private_tokens,
            hidden=arguments.hidden,
            dtype=jnp.bfloat16 if arguments.cases == "timed" else jnp.float32,
            channels=2,
        )
        self._expect_ways(arguments)

    def _expect_ways(self, arguments: argparse.Namespace) -> None:
        """That rows go the way that they are to go; whichever they go, results are the same."""
        local = os.environ.get("JAX_FABRIC_DOMAIN", "local") == "local"
        node = _node_of(arguments, arguments.process)

        def by_stores(process: int) -> bool:
            same_node = node != "" and _node_of(arguments, process) == node
            return not arguments.force_staged and (local or same_node)

        # Itself, and all others.
        wanted = 1 - by_stores(arguments.process)
        wanted += sum(by_stores(device.process_index) for device in self.mesh.devices.flat)
        for _, native in self.fabric._moe[-1].local:
            found = native.mapped_peers
            assert found == wanted, f"{found} ranks are reached by stores, and not {wanted}"

    def with_context(self, **changes) -> Checker:
        """The same on a context of its own; changes are of ExpertParallel."""
        config = self.moe.config
        other = copy.copy(self)
        other.moe = jf.moe.ExpertParallel(
            self.fabric,
            axis_name=AXIS,
            num_experts=config.num_experts,
            top_k=config.top_k,
            max_tokens=config.max_tokens,
            hidden=config.hidden,
            dtype=jnp.float32,
            **({"private_tokens": config.private_tokens} | changes),
        )
        return other

    def put(self, array: np.ndarray, spec: jax.sharding.PartitionSpec | None = None) -> jax.Array:
        """[N, ...] over the axis, or as the spec says, without a collective."""
        sharding = jax.sharding.NamedSharding(self.mesh, jax.P(AXIS) if spec is None else spec)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    def local(self, array: jax.Array, whole: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Pairs of what this process has of an array and what it must be."""
        return [(np.asarray(shard.data), whole[shard.index]) for shard in array.addressable_shards]

    def note(self, measurement: dict[str, object]) -> None:
        """Adds a line to the file of measurements, if one is wanted."""
        if self._measured:
            with open(self._measured, "a", encoding="utf-8") as file:
                print(json.dumps(measurement), file=file)

    def run_experts(self, received: jf.moe.Dispatched) -> jax.Array:
        """Each row times its expert's factor; NaN past the last row."""
        ends = jnp.cumsum(received.group_sizes)
        rows = jnp.arange(received.tokens.shape[0])
        local = jnp.searchsorted(ends, rows, side="right")
        expert = jax.lax.axis_index(AXIS) * self.moe.config.experts_per_rank + local
        return jnp.where(
            (rows < ends[-1])[:, None], received.tokens * (1 + expert % 7)[:, None], jnp.nan
        )

    def layer(self, x: jax.Array, experts: jax.Array, weights: jax.Array) -> jax.Array:
        """One rank's layer: dispatch, experts, combine."""
        received = self.moe.dispatch(x, experts, weights)
        return self.moe.combine(self.run_experts(received), received)

    def split_layer(self, x: jax.Array, experts: jax.Array, weights: jax.Array) -> jax.Array:
        """The same in halves, with something to compute between them."""
        started = self.moe.dispatch_start(x, experts, weights)
        received = self.moe.dispatch_done(started, overlap=x @ x.T)
        back = self.moe.combine_start(self.run_experts(received), received)
        return self.moe.combine_done(back, overlap={"sum": x.sum()})

    def on_ranks(self, function, outputs: int = 1, **options):
        """Jitted over the axis, all operands and results split; options are of jax.jit."""
        spec = jax.P(AXIS)
        out = spec if outputs == 1 else (spec,) * outputs
        return jax.jit(
            jax.shard_map(function, mesh=self.mesh, in_specs=spec, out_specs=out), **options
        )

    def expect(self, got, wanted: np.ndarray, what: str, tolerance: float = 2e-5) -> None:
        """Raises where a shard of this process differs."""
        for mine, whole in self.local(got, wanted):
            error = np.max(np.abs(mine - whole)) / max(1e-9, np.max(np.abs(whole)))
            if not error <= tolerance:
                self.fabric.check()
                raise AssertionError(f"{what}: relative error {error}")

    def expect_nothing(self, got, what: str) -> None:
        """Raises unless all of this process's shards are NaN."""
        for shard in got.addressable_shards:
            if not np.isnan(np.asarray(shard.data)).all():
                raise AssertionError(f"{what}: results where there can be none")
