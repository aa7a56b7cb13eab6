"""A Python target of this workspace uses jax_fabric as it would use any other dependency.

A jitted mixture-of-experts layer and its gradient, over 4 CPU devices: what plain JAX computes.
"""

from jax_fabric.testing.environment import prepare_cpu

prepare_cpu(4)  # before JAX starts

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import jax_fabric as jf  # noqa: E402
from jax_fabric.testing import oracle, routing  # noqa: E402

RANKS, TOKENS, EXPERTS, TOP_K, HIDDEN = 4, 8, 6, 2, 16


def main() -> None:
    """Raises where they differ."""
    routes = routing.generate(
        "uniform", ranks=RANKS, tokens=TOKENS, experts=EXPERTS, top_k=TOP_K, seed=0
    )
    x = np.random.default_rng(0).standard_normal((RANKS, TOKENS, HIDDEN)).astype(np.float32)

    @jax.jit
    def wanted(x):
        def loss(x):
            r = oracle.dispatch(x, routes.experts, routes.weights, num_experts=EXPERTS)
            out = oracle.combine(jnp.sin(r.tokens), r, tokens=TOKENS)
            return (out**2).sum(), (r.tokens, r.group_sizes, out)

        return jax.value_and_grad(loss, has_aux=True)(x)

    mesh = jax.make_mesh((RANKS,), ("ep",))
    with jf.Fabric(mesh) as fabric:
        moe = jf.moe.ExpertParallel(
            fabric,
            axis_name="ep",
            num_experts=EXPERTS,
            top_k=TOP_K,
            max_tokens=TOKENS,
            hidden=HIDDEN,
            dtype=jnp.float32,
        )

        @jax.jit
        @jax.shard_map(mesh=mesh, in_specs=P("ep"), out_specs=P("ep"))
        def layer(x, experts, weights):
            r = moe.dispatch(x, experts, weights, zero_padding=True)
            return r.tokens, r.group_sizes, moe.combine(jnp.sin(r.tokens), r)

        def loss(x, *routes):
            tokens, group_sizes, out = layer(x, *routes)
            return (out**2).sum(), (tokens, group_sizes, out)

        flat = [a.reshape(-1, a.shape[-1]) for a in (x, routes.experts, routes.weights)]
        operands = jax.device_put(flat, NamedSharding(mesh, P("ep")))
        got = jax.block_until_ready(jax.jit(jax.value_and_grad(loss, has_aux=True))(*operands))

    (loss_got, (tokens, group_sizes, out)), gradient = got
    (loss_wanted, (tokens_wanted, sizes_wanted, out_wanted)), gradient_wanted = wanted(x)
    np.testing.assert_array_equal(group_sizes, sizes_wanted.reshape(-1))
    np.testing.assert_array_equal(tokens, tokens_wanted.reshape(tokens.shape))  # moved: same bits
    for ours, theirs in (
        (out, out_wanted),
        (gradient, gradient_wanted),
        (loss_got, loss_wanted),
    ):
        np.testing.assert_allclose(ours, theirs.reshape(ours.shape), rtol=1e-4, atol=1e-6)
    print(f"{group_sizes.sum()} rows of {RANKS} ranks, as plain JAX has them: {jf.__file__}")


if __name__ == "__main__":
    main()
