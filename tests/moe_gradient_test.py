"""Gradients of dispatch and combine against those of the dense oracle."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax import lax
from moe_testing import Case, by_rank, context, flat, on_ranks

import jax_fabric as jf
from jax_fabric.testing import oracle

KINDS = ("uniform", "holes", "duplicates", "unrouted", "one_rank")


def row_function(tokens):
    """A nonlinear "expert": what it returns for a row depends on that row only."""
    return jnp.sin(tokens) + tokens * tokens


class GradientTest(parameterized.TestCase):
    def layer(self, moe, x, experts, weights, *, weighted=True):
        r = moe.dispatch(x, experts, weights)
        y = row_function(r.tokens)
        if not weighted:
            y = y * r.weights[:, None]
        return moe.combine(y, r, weighted=weighted)

    def oracle_layer(self, case, x, experts, weights):
        r = oracle.dispatch(x, experts, weights, num_experts=case.experts)
        return oracle.combine(
            row_function(r.tokens) * r.weights[..., None], r, tokens=case.tokens, weighted=False
        )

    def check(self, case, function, oracle_function, *, check_vma=False, repeats=3, **options):
        """Gradients in x and weights of <f(x, weights), c>, several times."""
        x, experts, weights = case.inputs()
        c = jnp.asarray(np.random.default_rng(5).standard_normal(x.shape), jnp.float32)

        def loss(x, weights, experts, c, function):
            return (function(x, experts, weights) * c).sum()

        want = jax.grad(loss, argnums=(0, 1))(x, weights, experts, c, oracle_function)
        with context(case, **options) as (mesh, moe):
            f = functools.partial(function, moe)
            gradient = on_ranks(
                lambda x, w, e, c: jax.grad(loss, argnums=(0, 1))(x, w, e, c, f),
                mesh,
                4,
                check_vma=check_vma,
            )
            operands = [flat(each, mesh) for each in (x, weights, experts, c)]
            for _ in range(repeats):
                got = gradient(*operands)
                for name, ours, theirs in zip(("x", "weights"), got, want, strict=True):
                    np.testing.assert_allclose(
                        by_rank(ours, case.ranks), theirs, rtol=2e-4, atol=2e-5, err_msg=name
                    )

    @parameterized.parameters(*((kind, vma) for kind in KINDS for vma in (False, True)))
    def test_layer(self, kind, check_vma):
        case = Case(routing=kind, top_k=3)
        self.check(
            case, self.layer, functools.partial(self.oracle_layer, case), check_vma=check_vma
        )

    def test_weights_applied_by_the_user(self):
        case = Case(top_k=3)
        self.check(
            case,
            functools.partial(self.layer, weighted=False),
            functools.partial(self.oracle_layer, case),
        )

    @parameterized.named_parameters(
        ("plain", lambda f: f),
        ("checkpoint", jax.checkpoint),
        ("policy", functools.partial(jax.checkpoint, policy=jf.moe.save_exchanges())),
        ("jit", jax.jit),
    )
    def test_unrolled_layers(self, wrap):
        case = Case(tokens=6, hidden=8)

        def stack(moe, x, e, w):
            layer = wrap(functools.partial(self.layer, moe))
            for _ in range(3):
                x = jnp.tanh(layer(x, e, w))
            return x

        def oracle_stack(x, e, w):
            for _ in range(3):
                x = jnp.tanh(self.oracle_layer(case, x, e, w))
            return x

        self.check(case, stack, oracle_stack, repeats=10)

    @parameterized.named_parameters(
        ("plain", lambda f: f, False),
        ("checkpoint", jax.checkpoint, False),
        ("policy", functools.partial(jax.checkpoint, policy=jf.moe.save_exchanges()), False),
        ("check_vma", jax.checkpoint, True),
    )
    def test_scan(self, wrap, check_vma):
        case = Case(tokens=6, hidden=8)

        def stack(moe, x, e, w):
            body = wrap(lambda x, _: (jnp.tanh(self.layer(moe, x, e, w)), None))
            return lax.scan(body, x, None, length=3)[0]

        def oracle_stack(x, e, w):
            for _ in range(3):
                x = jnp.tanh(self.oracle_layer(case, x, e, w))
            return x

        self.check(case, stack, oracle_stack, check_vma=check_vma, repeats=5)

    def test_replicated_weights_under_check_vma(self):
        case = Case(tokens=6, hidden=8)
        x, experts, weights = case.inputs()

        def loss(scale, x, e, w, layer):
            return (layer(x, e, w * scale) ** 2).sum()

        want = jax.grad(loss)(1.5, x, experts, weights, functools.partial(self.oracle_layer, case))
        with context(case) as (mesh, moe):
            layer = functools.partial(self.layer, moe)
            spec = jax.sharding.PartitionSpec
            f = jax.jit(
                jax.shard_map(
                    lambda scale, x, e, w: jax.grad(
                        lambda scale: lax.psum(loss(scale, x, e, w, layer), "ep")
                    )(scale),
                    mesh=mesh,
                    in_specs=(spec(), spec("ep"), spec("ep"), spec("ep")),
                    out_specs=spec(),
                    check_vma=True,
                )
            )
            got = np.asarray(
                f(jnp.float32(1.5), *(flat(each, mesh) for each in (x, experts, weights)))
            )
        np.testing.assert_allclose(got, want, rtol=1e-4)

    def test_policy_sends_nothing_again(self):
        case = Case(tokens=6, hidden=8)
        x, experts, weights = case.inputs()
        with context(case) as (mesh, moe):
            counts = {}
            for name, policy in (("plain", None), ("policy", jf.moe.save_exchanges())):

                def stack(x, e, w, policy=policy):
                    # Under scan, so that XLA cannot merge the second run with the first.
                    body = jax.checkpoint(
                        lambda x, _: (jnp.tanh(self.layer(moe, x, e, w)), None), policy=policy
                    )
                    return lax.scan(body, x, None, length=3)[0]

                f = on_ranks(
                    lambda x, e, w, stack=stack: jax.grad(lambda x: stack(x, e, w).sum())(x),
                    mesh,
                    3,
                )
                probe = on_ranks(lambda x, e, w: moe.dispatch(x, e, w).token, mesh, 3)
                operands = [flat(each, mesh) for each in (x, experts, weights)]
                # The numbers of two exchanges tell how many there were between them.
                before = int(np.asarray(probe(*operands))[0])
                jax.block_until_ready(f(*operands))
                counts[name] = int(np.asarray(probe(*operands))[0]) - before - 1
        # Three layers of two exchanges, forward and backward; plain remat sends the forward ones
        # again.
        self.assertEqual(counts, {"plain": 18, "policy": 12})


if __name__ == "__main__":
    absltest.main()
