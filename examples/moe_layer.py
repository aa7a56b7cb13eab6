"""A mixture-of-experts layer over 8 ranks, and its gradient. Run: python examples/moe_layer.py"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_fabric as jf
from jax_fabric.testing.environment import prepare_cpu

prepare_cpu(8)  # makes this machine's CPU 8 devices; must come before JAX starts
mesh = jax.make_mesh((8,), ("ep",))
with jf.Fabric(mesh) as fabric:
    moe = jf.moe.ExpertParallel(
        fabric, axis_name="ep", num_experts=16, top_k=2, max_tokens=32, hidden=64, dtype=jnp.float32
    )

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(P("ep"), P(), P("ep"), P("ep")), out_specs=P("ep"))
    def layer(x, router, w_in, w_out):  # [32, 64], [64, 16], [2, 64, 128], [2, 128, 64] on a rank
        weights, experts = jax.lax.top_k(jax.nn.softmax(x @ router), 2)
        r = moe.dispatch(x, experts, weights)
        y = jax.nn.silu(jax.lax.ragged_dot(r.tokens, w_in, r.group_sizes))
        return moe.combine(jax.lax.ragged_dot(y, w_out, r.group_sizes), r)

    def normal(*shape, spec):
        values = np.random.default_rng(0).standard_normal(shape, np.float32)
        return jax.device_put(0.1 * values, NamedSharding(mesh, spec))

    x, router = normal(8 * 32, 64, spec=P("ep")), normal(64, 16, spec=P())
    w_in, w_out = normal(16, 64, 128, spec=P("ep")), normal(16, 128, 64, spec=P("ep"))
    print("output", layer(x, router, w_in, w_out).shape)
    gradient = jax.jit(jax.grad(lambda w: (layer(x, router, w, w_out) ** 2).sum()))(w_in)
    print("gradient of the experts", gradient.shape, "norm", np.linalg.norm(gradient))
