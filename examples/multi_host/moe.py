"""One MoE exchange over all devices of all hosts; README.md says how to start it."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_fabric as jf

if "SLURM_PROCID" in os.environ:
    jax.distributed.initialize()  # JAX asks SLURM
else:
    jax.distributed.initialize(
        coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"],
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
        process_id=int(os.environ["JAX_PROCESS_ID"]),
    )

mesh = jax.make_mesh((jax.device_count(),), ("ep",))
with jf.Fabric(mesh) as fabric:
    moe = jf.moe.ExpertParallel(
        fabric,
        axis_name="ep",
        num_experts=4 * mesh.size,
        top_k=2,
        max_tokens=16,
        hidden=64,
        dtype=jnp.float32,
    )

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("ep"), out_specs=P("ep"))
    def there_and_back(x):
        weights, experts = jax.lax.top_k(jax.nn.softmax(x[:, : moe.config.num_experts]), 2)
        r = moe.dispatch(x, experts, weights / weights.sum(-1, keepdims=True))
        return moe.combine(r.tokens, r)  # experts that do nothing, weights that sum to 1

    rows = np.random.default_rng(0).standard_normal((16 * mesh.size, 64), np.float32)
    x = jax.make_array_from_callback(
        rows.shape, NamedSharding(mesh, P("ep")), lambda index: rows[index]
    )
    error = max(
        float(np.abs(np.asarray(shard.data) - rows[shard.index]).max())
        for shard in there_and_back(x).addressable_shards
    )
    assert error < 1e-5, error
    print(f"process {jax.process_index()} of {jax.process_count()}: rows are back", flush=True)
