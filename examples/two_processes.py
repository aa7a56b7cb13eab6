"""Tokens cross from one process to another. Run: python examples/two_processes.py"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_fabric as jf
from jax_fabric.testing import launch


def rank_main() -> list[float]:
    mesh = jax.make_mesh((2,), ("ep",))  # one device of each process
    with jf.Fabric(mesh) as fabric:
        moe = jf.moe.ExpertParallel(
            fabric,
            axis_name="ep",
            num_experts=2,
            top_k=1,
            max_tokens=1,
            hidden=4,
            dtype=jnp.float32,
        )

        @jax.jit
        @jax.shard_map(mesh=mesh, in_specs=P("ep"), out_specs=P("ep"))
        def to_the_other_rank(x):
            other = 1 - jax.lax.axis_index("ep")[None, None]
            return moe.dispatch(x, other, jnp.ones((1, 1))).tokens[:1]

        x = np.array([[0.0] * 4, [1.0] * 4], np.float32)  # rank 0 has zeros, rank 1 has ones
        sharding = NamedSharding(mesh, P("ep"))
        x = jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
        return to_the_other_rank(x).addressable_shards[0].data[0].tolist()


if __name__ == "__main__":
    for result in launch.run(rank_main, processes=2, timeout_s=120):
        print(f"process {result.rank} received {result.value}")
