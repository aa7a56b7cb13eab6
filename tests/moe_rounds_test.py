"""private_tokens: calls that take several rounds give the bits of the same calls in one round."""

import doctest
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax import lax
from moe_testing import Case, by_rank, context, contexts, flat, on_ranks, run

import jax_fabric as jf
from jax_fabric.moe import config as moe_config
from jax_fabric.testing import oracle

CASE = Case(ranks=4, tokens=12, experts=8, top_k=3, hidden=16, routing="holes")


def layer(moe, x, experts, weights, scale=2.0, **options):
    r = moe.dispatch(x, experts, weights, **options)
    return moe.combine(jnp.sin(r.tokens) * jnp.asarray(scale, x.dtype), r, **options)


def split_layer(moe, x, experts, weights, scale=2.0, **options):
    r = moe.dispatch_done(moe.dispatch_start(x, experts, weights, **options))
    y = jnp.sin(r.tokens) * jnp.asarray(scale, x.dtype)
    return moe.combine_done(moe.combine_start(y, r, **options))


def with_gradient(moe, x, experts, weights, of=layer):
    def loss(x, weights):
        out = of(moe, x, experts, weights)
        return (out.astype(jnp.float32) ** 2).sum(), out

    gradient, out = jax.grad(loss, argnums=(0, 1), has_aux=True)(x, weights)
    return out, *gradient


def rounds_of(r):
    """int32[1]: how many rounds a dispatch took."""
    return (r.routes.rows[0] >= 0).sum().astype(jnp.int32)[None]


def compare(function, *, case=CASE, private_tokens=(1, 5), repeats=1, operands=None, **options):
    """Runs function(moe, x, experts, weights) with every P; returns the result of one round."""
    variants = [{"private_tokens": p} for p in (None, *private_tokens)]
    with contexts(case, *variants, **options) as (mesh, moes):
        operands = [flat(each, mesh) for each in operands or case.inputs()]
        results = []
        for moe in moes:
            program = on_ranks(functools.partial(function, moe), mesh, len(operands))
            results += [program(*operands) for _ in range(repeats)]
        want, *others = [jax.tree.map(np.asarray, each) for each in results]
    for got in others:
        jax.tree.map(np.testing.assert_array_equal, got, want)
    return want


class RoundsTest(parameterized.TestCase):
    @parameterized.product(
        routing=["uniform", "one_rank", "duplicates", "zipf"],
        dtype=["float32", "bfloat16"],
    )
    def test_results_and_gradients(self, routing, dtype):
        case = Case(ranks=3, tokens=7, experts=7, top_k=3, hidden=20, dtype=dtype, routing=routing)
        compare(with_gradient, case=case, private_tokens=(2,))

    def test_the_oracle_agrees(self):
        x, experts, weights = CASE.inputs()
        expected = oracle.dispatch(x, experts, weights, num_experts=CASE.experts)

        def f(x, experts, weights):
            r = moe.dispatch(x, experts, weights, zero_padding=True)
            return r.tokens, r.group_sizes, moe.combine(r.tokens, r), rounds_of(r)

        with context(CASE, private_tokens=2) as (mesh, moe):
            tokens, group_sizes, out, rounds = (
                by_rank(each, CASE.ranks) for each in run(f, mesh, x, experts, weights)
            )
        np.testing.assert_array_equal(tokens, expected.tokens)
        np.testing.assert_array_equal(group_sizes, expected.group_sizes)
        want = oracle.combine(expected.tokens, expected, tokens=CASE.tokens)
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
        self.assertGreater(rounds.min(), 1)
        self.assertLessEqual(rounds.max(), 6)
        self.assertEqual(rounds.min(), rounds.max())

    @parameterized.parameters((16, 1), (8, 1), (7, 2), (4, 2), (3, 3), (1, 8))
    def test_rounds_follow_the_rows(self, private_tokens, rounds):
        """Eight of 16 tokens go to each rank, in turn."""
        case = Case(ranks=2, tokens=16, experts=2, top_k=1, hidden=4)
        x, _, weights = case.inputs()
        experts = jnp.broadcast_to(jnp.arange(16, dtype=jnp.int32)[None, :, None] % 2, (2, 16, 1))
        with context(case, private_tokens=private_tokens) as (mesh, moe):
            got = run(lambda *o: rounds_of(moe.dispatch(*o)), mesh, x, experts, weights)
        np.testing.assert_array_equal(got, rounds)

    @parameterized.named_parameters(("plain", None), ("saved", jf.moe.save_exchanges()))
    def test_scan_with_remat(self, policy):
        def f(moe, x, e, w):
            @functools.partial(jax.checkpoint, policy=policy)
            def step(x, scale):
                return layer(moe, x, e, w, scale), None

            def loss(x):
                return (lax.scan(step, x, jnp.array([1.0, 0.5, 2.0], x.dtype))[0] ** 2).sum()

            return jax.grad(loss)(x)

        compare(f, private_tokens=(3,), repeats=2)

    def test_vmap(self):
        batch = [jnp.stack([each, each[:, ::-1]], axis=1) for each in CASE.inputs()]

        def f(moe, x, e, w):
            operands = (each.reshape(2, CASE.tokens, -1) for each in (x, e, w))
            return jax.vmap(functools.partial(with_gradient, moe))(*operands)

        flat_batch = [each.reshape(CASE.ranks, 2 * CASE.tokens, -1) for each in batch]
        compare(f, max_tokens=2 * CASE.tokens, private_tokens=(3, 13), operands=flat_batch)

    @parameterized.parameters(1, 2)
    def test_independent_calls(self, channels):
        """In any order on one channel, side by side on two."""

        def f(moe, x, e, w):
            calls = [
                layer(moe, x, e, w, scale, channel=i % channels)
                for i, scale in enumerate((0.5, 1.0, 2.0, 4.0))
            ]
            return calls

        compare(f, private_tokens=(2,), repeats=10, channels=channels)

    def test_halves(self):
        """The first half sends the first round, the second one the others."""
        compare(
            lambda moe, *o: with_gradient(
                moe, *o, of=layer if moe.config.max_rounds == 1 else split_layer
            ),
            private_tokens=(1, 2, 5, 11),
            repeats=3,
        )

    def test_drop(self):
        def f(moe, x, e, w):
            r = moe.dispatch(x, e, w, zero_padding=True)
            return r.tokens, r.weights, r.group_sizes, r.dropped, moe.combine(r.tokens, r)

        case = Case(ranks=2, tokens=8, experts=4, top_k=2, routing="one_rank")
        *_, dropped, _ = compare(f, case=case, capacity=5, on_overflow="drop")
        self.assertGreater(dropped.sum(), 0)

    def test_no_rows(self):
        def f(moe, x, e, w):
            r = moe.dispatch(x[:0], e[:0], w[:0], zero_padding=True)
            return (
                r.tokens,
                r.group_sizes,
                rounds_of(r),
                jnp.zeros_like(x).at[:0].set(moe.combine(r.tokens, r)),
            )

        _, group_sizes, rounds, _ = compare(f)
        np.testing.assert_array_equal(group_sizes, 0)
        np.testing.assert_array_equal(rounds, 1)

    def test_overflow_is_an_error_before_anything_is_copied(self):
        case = Case(ranks=2, tokens=8, experts=4, top_k=2, routing="first_expert")
        message = r"moe dispatch \(channel 0, call 1, round 1\): \d+ rows were routed to the expert"
        with (
            self.assertRaisesRegex(RuntimeError, message),
            context(case, capacity=5, private_tokens=3) as (mesh, moe),
            self.assertRaisesRegex(jax.errors.JaxRuntimeError, message),
        ):
            run(lambda *operands: moe.dispatch(*operands).tokens, mesh, *case.inputs())

    def test_prefill(self):
        """8192 tokens of a rank through slots for 256; all products and sums are exact."""
        case = Case(ranks=2, tokens=8192, experts=4, top_k=2, hidden=64)
        rng = np.random.default_rng(0)
        x = rng.integers(-8, 9, (2, 8192, 64)).astype(np.float32)
        weights = (2.0 ** -rng.integers(1, 3, (2, 8192, 2))).astype(np.float32)
        _, experts, _ = case.inputs()
        with context(case, private_tokens=256) as (mesh, moe):
            one_round = moe_config.ExpertParallelConfig(
                num_ranks=2, num_experts=4, top_k=2, max_tokens=8192, hidden=64, dtype=jnp.float32
            )
            self.assertLess(moe.memory_bytes(), one_round.memory_bytes() / 8)
            # Its own slots, failure notices of 1 KiB a channel and rank, and nothing of their size.
            beside_slots = moe.memory_bytes() - moe.config.memory_bytes()
            self.assertBetween(beside_slots, 1024, 64 << 10)

            def f(x, e, w):
                r = moe.dispatch(x, e, w)
                return moe.combine(2 * r.tokens, r), rounds_of(r)

            out, rounds = run(f, mesh, jnp.asarray(x), experts, jnp.asarray(weights))
        self.assertGreaterEqual(rounds.min(), 20)
        self.assertLessEqual(rounds.max(), 32)
        np.testing.assert_array_equal(by_rank(out, 2), 2 * x * weights.sum(-1, keepdims=True))


class ConfigTest(parameterized.TestCase):
    SIZES = dict(num_ranks=2, num_experts=4, top_k=2, max_tokens=8, hidden=8)

    @parameterized.parameters(0, -1, 9, 2.0, "4")
    def test_refused(self, private_tokens):
        with self.assertRaisesRegex(
            ValueError,
            rf"private_tokens={private_tokens!r}: must be a whole number in \[1, max_tokens=8\]",
        ):
            moe_config.ExpertParallelConfig(**self.SIZES, private_tokens=private_tokens)

    @parameterized.parameters((None, 8, 1), (8, 8, 1), (5, 5, 2), (1, 1, 8), (np.int64(3), 3, 3))
    def test_max_rounds(self, given, private_tokens, max_rounds):
        config = moe_config.ExpertParallelConfig(**self.SIZES, private_tokens=given)
        self.assertEqual(config.private_tokens, private_tokens)
        self.assertEqual(config.max_rounds, max_rounds)

    def test_memory_table(self):
        results = doctest.testmod(moe_config)
        self.assertGreater(results.attempted, 0)
        self.assertEqual(results.failed, 0)


if __name__ == "__main__":
    absltest.main()
