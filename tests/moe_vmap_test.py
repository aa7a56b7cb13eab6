"""vmap: one exchange for a whole batch, each element with its own rows and groups."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from moe_testing import Case, context, flat, on_ranks

from jax_fabric.testing import oracle

BATCH = 3
CASE = Case(ranks=4, tokens=5, experts=8, top_k=3, hidden=8)


def batch_inputs():
    """x [N, B, T, H], experts [N, B, T, K], weights [N, B, T, K]."""
    elements = [Case(**{**CASE.__dict__, "seed": seed}).inputs() for seed in range(BATCH)]
    return [jnp.stack(each, axis=1) for each in zip(*elements, strict=True)]


def layer(moe, x, experts, weights):
    r = moe.dispatch(x, experts, weights)
    return moe.combine(jnp.sin(r.tokens) + r.tokens, r)


def oracle_layer(x, experts, weights):
    r = oracle.dispatch(x, experts, weights, num_experts=CASE.experts)
    return oracle.combine(jnp.sin(r.tokens) + r.tokens, r, tokens=CASE.tokens)


class VmapTest(parameterized.TestCase):
    def batched(self, function, check_vma=False):
        """The function on each rank's [B, T, ...], as results [N, B, ...]."""

        def local(*operands):
            return jax.tree.map(lambda each: each[None], function(*(each[0] for each in operands)))

        def call(mesh, *operands):
            operands = [flat(each[:, None], mesh) for each in operands]
            f = on_ranks(local, mesh, len(operands), check_vma=check_vma)
            return jax.tree.map(np.asarray, f(*operands))

        return call

    def test_elements_keep_their_own_rows(self):
        x, experts, weights = batch_inputs()
        with context(CASE, max_tokens=BATCH * CASE.tokens, capacity=40) as (mesh, moe):

            def f(x, e, w):
                r = jax.vmap(functools.partial(moe.dispatch, zero_padding=True))(x, e, w)
                return r.tokens, r.weights, r.group_sizes, r.dropped

            got = self.batched(f)(mesh, x, experts, weights)
        for b in range(BATCH):
            want = oracle.dispatch(
                x[:, b], experts[:, b], weights[:, b], num_experts=CASE.experts, capacity=40
            )
            np.testing.assert_array_equal(got[0][:, b], want.tokens)
            np.testing.assert_allclose(got[1][:, b], want.weights, rtol=1e-6)
            np.testing.assert_array_equal(got[2][:, b], want.group_sizes)
            np.testing.assert_array_equal(got[3][:, b], 0)

    @parameterized.parameters(False, True)
    def test_layer(self, check_vma):
        x, experts, weights = batch_inputs()
        with context(CASE, max_tokens=BATCH * CASE.tokens) as (mesh, moe):
            f = jax.vmap(functools.partial(layer, moe))
            got = self.batched(f, check_vma)(mesh, x, experts, weights)
        for b in range(BATCH):
            want = oracle_layer(x[:, b], experts[:, b], weights[:, b])
            np.testing.assert_allclose(got[:, b], want, rtol=1e-5, atol=1e-6)

    @parameterized.named_parameters(
        ("vmap_of_grad", lambda loss: jax.vmap(jax.grad(loss, argnums=(0, 2)))),
        (
            "grad_of_vmap",
            lambda loss: jax.grad(lambda *a: jax.vmap(loss)(*a).sum(), argnums=(0, 2)),
        ),
    )
    def test_gradient(self, transform):
        x, experts, weights = batch_inputs()
        with context(CASE, max_tokens=BATCH * CASE.tokens) as (mesh, moe):
            got = self.batched(transform(lambda x, e, w: (layer(moe, x, e, w) ** 2).sum()))(
                mesh, x, experts, weights
            )
        for b in range(BATCH):
            want = jax.grad(lambda x, e, w: (oracle_layer(x, e, w) ** 2).sum(), argnums=(0, 2))(
                x[:, b], experts[:, b], weights[:, b]
            )
            for ours, theirs in zip(got, want, strict=True):
                np.testing.assert_allclose(ours[:, b], theirs, rtol=1e-4, atol=1e-5)

    def test_one_exchange_for_the_batch(self):
        x, experts, weights = batch_inputs()
        with context(CASE, max_tokens=BATCH * CASE.tokens) as (mesh, moe):
            probe = self.batched(lambda x, e, w: moe.dispatch(x[0], e[0], w[0]).token)
            before = probe(mesh, x, experts, weights)[0, 0]
            self.batched(jax.vmap(functools.partial(layer, moe)))(mesh, x, experts, weights)
            after = probe(mesh, x, experts, weights)[0, 0]
        self.assertEqual(after - before - 1, 2)  # one dispatch, one combine

    def test_nested(self):
        x, experts, weights = batch_inputs()
        pairs = [jnp.stack([each, each[:, ::-1]], axis=1) for each in (x, experts, weights)]
        with context(CASE, max_tokens=2 * BATCH * CASE.tokens) as (mesh, moe):
            f = jax.vmap(jax.vmap(functools.partial(layer, moe)))
            got = self.batched(f)(mesh, *pairs)
        for b in range(BATCH):
            want = oracle_layer(x[:, b], experts[:, b], weights[:, b])
            np.testing.assert_allclose(got[:, 0, b], want, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(got[:, 1, BATCH - 1 - b], want, rtol=1e-5, atol=1e-6)

    def test_results_of_one_dispatch_under_vmap(self):
        x, experts, weights = CASE.inputs()
        with context(CASE) as (mesh, moe):

            def f(x, e, w):
                r = moe.dispatch(x, e, w)
                return jax.vmap(lambda scale: moe.combine(r.tokens * scale, r))(jnp.arange(3.0))

            got = self.batched(f)(mesh, x, experts, weights)
        r = oracle.dispatch(x, experts, weights, num_experts=CASE.experts)
        for i in range(3):
            want = oracle.combine(r.tokens * i, r, tokens=CASE.tokens)
            np.testing.assert_allclose(got[:, i], want, rtol=1e-5, atol=1e-6)

    def test_too_many_rows_together(self):
        x, experts, weights = batch_inputs()
        with (
            context(CASE) as (mesh, moe),
            self.assertRaisesRegex(ValueError, "3 elements under vmap have 15 rows.*max_tokens=5"),
        ):
            self.batched(jax.vmap(functools.partial(layer, moe)))(mesh, x, experts, weights)


if __name__ == "__main__":
    absltest.main()
