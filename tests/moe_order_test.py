"""Calls that XLA may start in any order: every rank must take them for the same ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax import lax
from moe_testing import Case, by_rank, context, flat, on_ranks

import jax_fabric as jf
from jax_fabric.testing import oracle

REPEATS = 15


def expected_layer(x, experts, weights, scale):
    """x -> combine(scale * dispatch(x)) by the oracle, [N, T, H]."""
    r = oracle.dispatch(x, experts, weights, num_experts=8)
    return oracle.combine(r.tokens * scale, r, tokens=x.shape[1])


class OrderTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.case = Case(ranks=4, tokens=6, experts=8, top_k=2, hidden=16)
        self.x, self.experts, self.weights = self.case.inputs()

    def run_on(self, mesh, function, *, check_vma=False, repeats=REPEATS):
        """Runs it many times; all results must be equal."""
        f = on_ranks(function, mesh, 3, check_vma=check_vma)
        operands = [flat(each, mesh) for each in (self.x, self.experts, self.weights)]
        first = jax.tree.map(np.asarray, f(*operands))
        for _ in range(repeats):
            again = jax.tree.map(np.asarray, f(*operands))
            jax.tree.map(np.testing.assert_array_equal, again, first)
        return jax.tree.map(lambda each: by_rank(each, self.case.ranks), first)

    def check(self, got, *scales):
        want = self.x
        for scale in scales:
            want = expected_layer(want, self.experts, self.weights, scale)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)

    @staticmethod
    def layer(moe, x, experts, weights, scale, **options):
        r = moe.dispatch(x, experts, weights, **options)
        return moe.combine(r.tokens * scale, r, **options)

    @parameterized.parameters(False, True)
    def test_unrolled_layers(self, check_vma):
        with context(self.case) as (mesh, moe):

            def f(x, e, w):
                for scale in (1.0, 2.0, 0.5):
                    x = self.layer(moe, x, e, w, scale)
                return x

            self.check(self.run_on(mesh, f, check_vma=check_vma), 1.0, 2.0, 0.5)

    def test_independent_calls_on_one_channel(self):
        with context(self.case) as (mesh, moe):

            def f(x, e, w):
                return [self.layer(moe, x, e, w, scale) for scale in (1.0, 2.0, 3.0, 4.0, 5.0)]

            for got, scale in zip(self.run_on(mesh, f), (1.0, 2.0, 3.0, 4.0, 5.0), strict=True):
                self.check(got, scale)

    def test_independent_calls_on_two_channels(self):
        with context(self.case, channels=2) as (mesh, moe):

            def f(x, e, w):
                return [self.layer(moe, x, e, w, 1.0 + i, channel=i % 2) for i in range(6)]

            for i, got in enumerate(self.run_on(mesh, f)):
                self.check(got, 1.0 + i)

    def test_more_independent_calls_than_tickets(self):
        with context(self.case) as (mesh, moe):

            def f(x, e, w):
                return [self.layer(moe, x, e, w, 1.0 + i) for i in range(20)]

            for i, got in enumerate(self.run_on(mesh, f, repeats=4)):
                self.check(got, 1.0 + i)

    def test_one_jitted_layer_called_independently(self):
        with context(self.case) as (mesh, moe):
            layer = jax.jit(functools.partial(self.layer, moe))

            def f(x, e, w):
                return [layer(x, e, w, jnp.float32(scale)) for scale in (1.0, 2.0, 3.0)]

            for got, scale in zip(self.run_on(mesh, f), (1.0, 2.0, 3.0), strict=True):
                self.check(got, scale)

    @parameterized.parameters(False, True)
    def test_scan(self, check_vma):
        with context(self.case) as (mesh, moe):

            def f(x, e, w):
                def body(x, scale):
                    return self.layer(moe, x, e, w, scale), None

                return lax.scan(body, x, jnp.asarray([1.0, 2.0, 0.5, 1.5]))[0]

            self.check(self.run_on(mesh, f, check_vma=check_vma), 1.0, 2.0, 0.5, 1.5)

    def test_scan_over_slices_and_stacked_results(self):
        with context(self.case) as (mesh, moe):

            def f(x, e, w):
                def body(carry, scale):
                    y = self.layer(moe, x, e, w, scale)
                    return carry + 1, y

                return lax.scan(body, 0, jnp.asarray([1.0, 2.0, 0.5]))[1].swapaxes(0, 1)

            got = self.run_on(mesh, f)
            for i, scale in enumerate((1.0, 2.0, 0.5)):
                self.check(got[:, :, i], scale)

    def test_cond(self):
        with context(self.case) as (mesh, moe):

            def f(x, e, w):
                for step in range(3):
                    x = lax.cond(
                        step % 2 == 0,
                        lambda x: self.layer(moe, x, e, w, 2.0),
                        lambda x: self.layer(moe, x, e, w, 0.5),
                        x,
                    )
                return x

            self.check(self.run_on(mesh, f), 2.0, 0.5, 2.0)

    def test_while_loop(self):
        with context(self.case) as (mesh, moe):

            def f(x, e, w):
                def body(state):
                    step, x = state
                    return step + 1, self.layer(moe, x, e, w, 1.0 + step)

                return lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]

            self.check(self.run_on(mesh, f), 1.0, 2.0, 3.0)

    def test_launches_in_flight_together(self):
        with context(self.case) as (mesh, moe):
            f = on_ranks(lambda x, e, w: self.layer(moe, x, e, w, 2.0), mesh, 3)
            g = on_ranks(lambda x, e, w: self.layer(moe, x, e, w, 3.0), mesh, 3)
            operands = [flat(each, mesh) for each in (self.x, self.experts, self.weights)]
            results = [(f(*operands), g(*operands)) for _ in range(20)]
            for two, three in results:
                self.check(by_rank(two, self.case.ranks), 2.0)
                self.check(by_rank(three, self.case.ranks), 3.0)

    def test_donated_operands(self):
        """What takes the place of an operand must not do so while the exchange still reads it."""
        with context(self.case) as (mesh, moe):

            def send(x, e, w):
                r = moe.dispatch(x, e, w)
                return x + 1, r.tokens * 2, r

            def bring(y, r):
                return y + 1, moe.combine(y, r)

            def layer(x, e, w):
                return self.layer(moe, x, e, w, 2.0)

            send, bring, layer = (
                jax.jit(on_ranks(f, mesh, n), donate_argnums=0)
                for f, n in ((send, 3), (bring, 2), (layer, 3))
            )
            e, w = (flat(each, mesh) for each in (self.experts, self.weights))
            for _ in range(REPEATS):
                given, state = flat(self.x, mesh), flat(self.x, mesh)
                x, y, r = send(given, e, w)
                y_more, out = bring(y, r)
                # Steps whose state is donated, in flight together.
                first = layer(state, e, w)
                last = layer(first, e, w)
                for each in (given, y, state, first):
                    self.assertTrue(each.is_deleted())
                np.testing.assert_array_equal(by_rank(x, self.case.ranks), self.x + 1)
                self.check(by_rank(out, self.case.ranks), 2.0)
                self.check(by_rank(last, self.case.ranks), 2.0, 2.0)
                # Of the rows that are specified.
                sent, counts, y_more = (
                    by_rank(each, self.case.ranks) for each in (r.tokens, r.group_sizes, y_more)
                )
                used = np.arange(moe.capacity) < counts.sum(axis=1, keepdims=True)
                np.testing.assert_array_equal(y_more[used], 2 * sent[used] + 1)

    def test_after_orders_without_data(self):
        with context(self.case) as (mesh, moe):

            def f(x, e, w):
                first = moe.dispatch(x, e, w)
                second = moe.dispatch(x, e, w, after=first.token)
                return (
                    moe.combine(first.tokens, first, after=second.token),
                    moe.combine(second.tokens, second),
                    first.token,
                    second.token,
                )

            f = on_ranks(f, mesh, 3)
            operands = [flat(each, mesh) for each in (self.x, self.experts, self.weights)]
            for _ in range(REPEATS):
                one, two, first, second = f(*operands)
                self.check(by_rank(one, self.case.ranks), 1.0)
                self.check(by_rank(two, self.case.ranks), 1.0)
                self.assertTrue((np.asarray(second) > np.asarray(first)).all())

    def test_two_contexts_in_one_program(self):
        mesh = jax.make_mesh((4,), ("ep",), devices=jax.devices()[:4])
        with jf.Fabric(mesh) as fabric:
            contexts = [
                jf.moe.ExpertParallel(
                    fabric,
                    axis_name="ep",
                    num_experts=8,
                    top_k=2,
                    max_tokens=6,
                    hidden=16,
                    dtype=jnp.float32,
                )
                for _ in range(2)
            ]

            def f(x, e, w):
                return [self.layer(moe, x, e, w, 1.0 + i) for i, moe in enumerate(contexts)]

            for i, got in enumerate(self.run_on(mesh, f)):
                self.check(got, 1.0 + i)

    def test_slices_of_another_mesh_axis(self):
        mesh = jax.make_mesh((2, 4), ("dp", "ep"), devices=jax.devices()[:8])
        with jf.Fabric(mesh) as fabric:
            moe = jf.moe.ExpertParallel(
                fabric,
                axis_name="ep",
                num_experts=8,
                top_k=2,
                max_tokens=6,
                hidden=16,
                dtype=jnp.float32,
            )
            spec = jax.sharding.PartitionSpec(("dp", "ep"))
            f = jax.jit(
                jax.shard_map(
                    lambda x, e, w: self.layer(moe, x, e, w, 2.0),
                    mesh=mesh,
                    in_specs=(spec,) * 3,
                    out_specs=spec,
                    check_vma=True,
                )
            )
            x = jnp.stack([self.x, self.x[::-1]]).reshape(-1, 16)
            e = jnp.concatenate([self.experts, self.experts]).reshape(-1, 2)
            w = jnp.concatenate([self.weights, self.weights]).reshape(-1, 2)
            sharding = jax.sharding.NamedSharding(mesh, spec)
            got = f(*(jax.device_put(each, sharding) for each in (x, e, w)))
            got = np.asarray(got).reshape(2, 4, 6, 16)
        self.check(got[0], 2.0)
        want = expected_layer(self.x[::-1], self.experts, self.weights, 2.0)
        np.testing.assert_allclose(got[1], want, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    absltest.main()
