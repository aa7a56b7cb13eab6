"""Dispatch with rows quantised to float8_e4m3fn, against plain JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax import lax
from moe_testing import Case, by_rank, context, flat, on_ranks, run, straight_through

import jax_fabric as jf
from jax_fabric.testing import oracle

FP8 = jnp.float8_e4m3fn


def bits(values) -> np.ndarray:
    """What stands in memory: NaN and -0 compare like everything else."""
    values = np.asarray(values)
    return values.view(f"uint{8 * values.dtype.itemsize}")


def cleared(r, capacity):
    """The tokens and scales that are specified, 0 for the others."""
    used = (jnp.arange(capacity) < r.group_sizes.sum())[:, None]
    tokens = jnp.where(used, r.tokens.astype(jnp.float32), 0).astype(r.tokens.dtype)
    return tokens, None if r.scales is None else jnp.where(used, r.scales, 0)


def expected_rows(case, capacity=None):
    """What experts should get: float8 tokens [N, C, H], scales [N, C, S], and the rest."""
    x, experts, weights = case.inputs()
    values, scales = oracle.quantise(x)
    options = dict(num_experts=case.experts, capacity=capacity)
    r = oracle.dispatch(values, experts, weights, **options)
    return r.tokens, oracle.dispatch(scales, experts, weights, **options).tokens, r


class OracleTest(parameterized.TestCase):
    def test_scales_and_values(self):
        x = jnp.zeros((2, 130)).at[0, :4].set(jnp.array([896.0, -448.0, 1.0, 2.0]))
        values, scales = oracle.quantise(x)
        least = np.float32(1e-4) * np.float32(1 / 448)
        np.testing.assert_array_equal(
            scales, np.array([[np.float32(896) * np.float32(1 / 448), least], [least, least]])
        )
        np.testing.assert_array_equal(values[0, :4].astype(np.float32), [448, -224, 0.5, 1])
        np.testing.assert_array_equal(values[1].astype(np.float32), 0)
        back = oracle.dequantise(values, scales, jnp.float32)
        np.testing.assert_allclose(back[0, :4], [896, -448, 1, 2], rtol=1e-6)


class Fp8ForwardTest(parameterized.TestCase):
    def check(self, case, *, tokens_dtype=None, quantised_input=False, **options):
        """Bit by bit, with rows quantised by the exchange or before it."""
        x, experts, weights = case.inputs()
        values, scales, want = expected_rows(case, options.get("capacity"))
        with context(case, dispatch_dtype=FP8, tokens_dtype=tokens_dtype, **options) as (mesh, moe):

            def f(x, experts, weights, scales=None):
                r = moe.dispatch(x, experts, weights, scales=scales)
                return (*cleared(r, moe.capacity), r.group_sizes, r.dropped)

            operands = [x, experts, weights]
            if quantised_input:
                given, given_scales = oracle.quantise(x)
                operands = [given, experts, weights, given_scales]
            tokens, got_scales, group_sizes, dropped = run(f, mesh, *operands)
        np.testing.assert_array_equal(by_rank(group_sizes, case.ranks), want.group_sizes)
        np.testing.assert_array_equal(by_rank(dropped, case.ranks), want.dropped)
        if tokens_dtype is None:
            np.testing.assert_array_equal(bits(by_rank(tokens, case.ranks)), bits(values))
            np.testing.assert_array_equal(by_rank(got_scales, case.ranks), scales)
        else:
            self.assertIsNone(got_scales)
            dequantised = oracle.dequantise(values, scales, jnp.dtype(tokens_dtype))
            np.testing.assert_array_equal(bits(by_rank(tokens, case.ranks)), bits(dequantised))

    @parameterized.parameters(
        ("float32", None),
        ("bfloat16", None),
        ("float16", None),
        ("float32", "bfloat16"),
        ("bfloat16", "float32"),
        ("float16", "float16"),
    )
    def test_dtypes(self, dtype, tokens_dtype):
        case = Case(ranks=4, tokens=7, experts=6, top_k=3, hidden=200, dtype=jnp.dtype(dtype))
        self.check(case, tokens_dtype=tokens_dtype)

    @parameterized.parameters(
        *((1, True), (1, False), (7, True), (100, False), (127, True), (128, False)),
        *((2880, True), (3072, False), (4096, True)),
    )
    def test_hidden(self, hidden, raw):
        case = Case(ranks=2, tokens=5, experts=5, hidden=hidden, dtype=jnp.bfloat16)
        self.check(case, tokens_dtype=None if raw else jnp.bfloat16)

    @parameterized.parameters("holes", "duplicates", "unrouted")
    def test_routings(self, kind):
        self.check(Case(routing=kind, top_k=3, hidden=130, dtype=jnp.bfloat16))

    @parameterized.parameters(None, "bfloat16")
    def test_rows_that_are_quantised_already(self, tokens_dtype):
        case = Case(ranks=3, top_k=2, experts=7, hidden=300, dtype=jnp.bfloat16)
        self.check(case, tokens_dtype=tokens_dtype, quantised_input=True)

    @parameterized.product(tokens_dtype=(None, "bfloat16"), quantised_input=(False, True))
    def test_rounds(self, **options):
        case = Case(ranks=3, tokens=7, top_k=3, experts=7, hidden=300, dtype=jnp.bfloat16)
        self.check(case, private_tokens=3, **options)

    def test_drop(self):
        case = Case(ranks=2, routing="one_rank", hidden=140, dtype=jnp.bfloat16)
        self.check(case, capacity=11, on_overflow="drop")

    def test_zero_padding(self):
        case = Case(ranks=2, hidden=140, dtype=jnp.bfloat16)
        with context(case, dispatch_dtype=FP8) as (mesh, moe):

            def f(x, experts, weights):
                r = moe.dispatch(x, experts, weights, zero_padding=True)
                return r.tokens, r.scales

            tokens, scales = run(f, mesh, *case.inputs())
        want_tokens, want_scales, _ = expected_rows(case)
        np.testing.assert_array_equal(bits(by_rank(tokens, 2)), bits(want_tokens))
        np.testing.assert_array_equal(by_rank(scales, 2), want_scales)

    def test_no_rows(self):
        case = Case(ranks=2, tokens=4, hidden=140)
        with context(case, dispatch_dtype=FP8) as (mesh, moe):

            def f(x, experts, weights):
                r = moe.dispatch(x[:0], experts[:0], weights[:0], zero_padding=True)
                return r.tokens.astype(jnp.float32), r.scales, r.group_sizes

            for each in run(f, mesh, *case.inputs()):
                np.testing.assert_array_equal(np.asarray(each), 0)

    def test_what_is_not_finite(self):
        """Becomes NaN, and the rest of its block stays what it is."""
        case = Case(ranks=2, tokens=3, top_k=1, hidden=140, dtype=jnp.bfloat16)
        x, experts, weights = case.inputs()
        x = x.at[:, 0, 5].set(jnp.inf).at[:, 1, 6].set(-jnp.inf).at[:, 2, 139].set(jnp.nan)
        with context(case, dispatch_dtype=FP8, tokens_dtype=jnp.float32) as (mesh, moe):

            def f(x, experts, weights):
                r = moe.dispatch(x, experts, weights)
                return moe.combine(r.tokens.astype(case.dtype), r, weighted=False)

            out = by_rank(run(f, mesh, x, experts, weights), 2)
        np.testing.assert_array_equal(np.isnan(out), ~np.isfinite(np.asarray(x)))
        with_zeros = jnp.where(jnp.isfinite(x), x, 0)
        want = oracle.dequantise(*oracle.quantise(with_zeros), case.dtype)
        np.testing.assert_array_equal(np.where(np.isnan(out), 0, out), want)

    @parameterized.parameters(None, 5)
    def test_two_halves(self, private_tokens):
        case = Case(ranks=4, hidden=200, dtype=jnp.bfloat16)
        options = dict(dispatch_dtype=FP8, private_tokens=private_tokens)
        with context(case, **options) as (mesh, moe):

            def f(x, experts, weights):
                pending = moe.dispatch_start(x, experts, weights)
                return cleared(moe.dispatch_done(pending), moe.capacity)

            tokens, scales = run(f, mesh, *case.inputs())
        want_tokens, want_scales, _ = expected_rows(case)
        np.testing.assert_array_equal(bits(by_rank(tokens, 4)), bits(want_tokens))
        np.testing.assert_array_equal(by_rank(scales, 4), want_scales)

    @parameterized.parameters(None, "bfloat16")
    def test_vmap(self, tokens_dtype):
        batch, case = 3, Case(ranks=2, tokens=4, hidden=200, dtype=jnp.bfloat16)
        cases = [Case(**(case.__dict__ | {"seed": seed})) for seed in range(batch)]
        x, experts, weights = (
            jnp.stack(each, axis=1) for each in zip(*(c.inputs() for c in cases), strict=True)
        )
        options = dict(dispatch_dtype=FP8, tokens_dtype=tokens_dtype, max_tokens=batch * 4)
        with context(case, capacity=30, **options) as (mesh, moe):

            def f(*operands):
                r = jax.vmap(functools.partial(moe.dispatch, zero_padding=True))(
                    *(each[0] for each in operands)
                )
                return r.tokens[None], None if r.scales is None else r.scales[None]

            tokens, scales = run(f, mesh, *(each[:, None] for each in (x, experts, weights)))
        for b, each in enumerate(cases):
            values, want_scales, _ = expected_rows(each, capacity=30)
            if tokens_dtype is None:
                np.testing.assert_array_equal(bits(tokens)[:, b], bits(values))
                np.testing.assert_array_equal(np.asarray(scales)[:, b], want_scales)
            else:
                want = oracle.dequantise(values, want_scales, jnp.dtype(tokens_dtype))
                np.testing.assert_array_equal(bits(tokens)[:, b], bits(want))

    def test_large(self):
        """Rows that go past the caches."""
        case = Case(ranks=2, tokens=96, top_k=8, experts=16, hidden=7168, dtype=jnp.bfloat16)
        self.check(case, tokens_dtype=jnp.bfloat16)


class Fp8GradientTest(parameterized.TestCase):
    CASE = Case(ranks=4, tokens=6, top_k=3, hidden=140)

    def oracle_loss(self, case, tokens_dtype, x, weights, experts, c):
        x = straight_through(x, jnp.dtype(tokens_dtype))
        r = oracle.dispatch(x, experts, weights, num_experts=case.experts)
        y = jnp.sin(r.tokens).astype(case.dtype)
        out = oracle.combine(y * r.weights[..., None], r, tokens=case.tokens, weighted=False)
        return (out * c).sum()

    def loss(self, moe, x, weights, experts, c, start=False):
        if start:
            r = moe.dispatch_done(moe.dispatch_start(x, experts, weights))
        else:
            r = moe.dispatch(x, experts, weights)
        return (moe.combine(jnp.sin(r.tokens).astype(x.dtype), r) * c).sum()

    def check(self, transform=lambda f: f, *, check_vma=False, start=False):
        case = self.CASE
        x, experts, weights = case.inputs()
        c = jnp.asarray(np.random.default_rng(5).standard_normal(x.shape), jnp.float32)
        want = jax.grad(functools.partial(self.oracle_loss, case, "float32"), argnums=(0, 1))(
            x, weights, experts, c
        )
        with context(case, dispatch_dtype=FP8, tokens_dtype=case.dtype) as (mesh, moe):
            loss = transform(functools.partial(self.loss, moe, start=start))
            gradient = on_ranks(jax.grad(loss, argnums=(0, 1)), mesh, 4, check_vma=check_vma)
            got = jax.block_until_ready(
                gradient(*(flat(each, mesh) for each in (x, weights, experts, c)))
            )
        for name, ours, theirs in zip(("x", "weights"), got, want, strict=True):
            np.testing.assert_allclose(
                by_rank(ours, case.ranks), theirs, rtol=2e-4, atol=2e-5, err_msg=name
            )

    @parameterized.parameters(False, True)
    def test_layer(self, check_vma):
        self.check(check_vma=check_vma)

    @parameterized.named_parameters(
        ("checkpoint", jax.checkpoint),
        ("policy", functools.partial(jax.checkpoint, policy=jf.moe.save_exchanges())),
    )
    def test_remat(self, transform):
        self.check(transform)

    def test_two_halves(self):
        self.check(start=True)

    def test_scan(self):
        """Three layers, each of which quantises what the one before has made."""

        def layers(layer, x):
            return lax.scan(lambda x, _: (x + layer(x), None), x, None, length=3)[0]

        case = self.CASE
        x, experts, weights = case.inputs()

        def oracle_layer(x):
            r = oracle.dispatch(
                straight_through(x, jnp.float32), experts, weights, num_experts=case.experts
            )
            return oracle.combine(jnp.sin(r.tokens), r, tokens=case.tokens)

        want = jax.grad(lambda x: (layers(oracle_layer, x) ** 2).sum())(x)
        with context(case, dispatch_dtype=FP8, tokens_dtype=case.dtype) as (mesh, moe):

            def f(x, experts, weights):
                def layer(x):
                    r = moe.dispatch(x, experts, weights)
                    return moe.combine(jnp.sin(r.tokens), r)

                return jax.grad(lambda x: (layers(layer, x) ** 2).sum())(x)

            got = by_rank(run(f, mesh, x, experts, weights), case.ranks)
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-3)

    @parameterized.parameters(False, True)
    def test_quantised_tokens_give_weights_a_gradient(self, check_vma):
        case = self.CASE
        x, experts, weights = case.inputs()
        with context(case, dispatch_dtype=FP8) as (mesh, moe):

            def loss(weights, x, experts, quantised):
                scales = None
                if quantised:
                    x, scales = lax.stop_gradient(oracle.quantise(x))
                r = moe.dispatch(x, experts, weights, scales=scales)
                y = oracle.dequantise(*lax.stop_gradient((r.tokens, r.scales)), jnp.float32)
                return (moe.combine(y, r) * 3).sum()

            def gradients(weights, x, experts):
                gradient = jax.grad(loss)
                return gradient(weights, x, experts, False), gradient(weights, x, experts, True)

            got = on_ranks(gradients, mesh, 3, check_vma=check_vma)(
                *(flat(each, mesh) for each in (weights, x, experts))
            )
            got = jax.block_until_ready(got)

        def oracle_loss(weights):
            x_back = straight_through(x, jnp.float32)
            r = oracle.dispatch(x_back, experts, weights, num_experts=case.experts)
            return (oracle.combine(r.tokens, r, tokens=case.tokens) * 3).sum()

        want = jax.grad(oracle_loss)(weights)
        for each in got:
            np.testing.assert_allclose(by_rank(each, case.ranks), want, rtol=2e-4, atol=1e-4)


class Fp8ErrorsTest(parameterized.TestCase):
    CASE = Case(ranks=2, tokens=4, hidden=140)

    @parameterized.parameters(
        (
            dict(dispatch_dtype=jnp.float8_e5m2),
            "dispatch_dtype=.*e5m2.*: must be one of float32, float8_e4m3fn",
        ),
        (dict(dispatch_dtype=jnp.bfloat16), "dispatch_dtype=.*: must be one of float32, float8"),
        (dict(tokens_dtype=jnp.bfloat16), "tokens_dtype=.*bfloat16.*: must be one of float32"),
        (dict(tokens_dtype=FP8), "tokens_dtype=.*: must be one of float32"),
        (dict(dispatch_dtype=FP8, tokens_dtype=jnp.int8), "tokens_dtype=.*int8.*: must be one of"),
        (dict(dtype=FP8), "dtype=.*: must be one of float32, bfloat16, float16"),
        (dict(combine_dtype=FP8), "combine_dtype=.*: must be one of float32, bfloat16, float16"),
    )
    def test_config(self, arguments, message):
        good = dict(num_ranks=2, num_experts=4, top_k=2, max_tokens=8, hidden=4, dtype=jnp.float32)
        with self.assertRaisesRegex(ValueError, message):
            jf.moe.ExpertParallelConfig(**(good | arguments))

    def assert_raises(self, message, function, **options):
        with context(self.CASE, **options) as (mesh, moe):
            operands = [flat(each, mesh) for each in self.CASE.inputs()]
            with self.assertRaisesRegex(ValueError, message):
                on_ranks(functools.partial(function, moe), mesh, 3)(*operands)

    @parameterized.named_parameters(
        (
            "no_scales",
            lambda x: (x.astype(FP8), None),
            r"x is float8_e4m3fn and comes without.*2\]",
        ),
        ("needless", lambda x: (x, x[:, :2]), "scales were given, and x is float32"),
        (
            "shape",
            lambda x: (x.astype(FP8), x[:, :1]),
            r"scales are float32\[4, 1\], and must be float32\[4, 2\]",
        ),
        (
            "dtype",
            lambda x: (x.astype(FP8), x[:, :2].astype(jnp.bfloat16)),
            r"scales are bfloat16\[4, 2\], and must be float32\[4, 2\]",
        ),
        ("x", lambda x: (x.astype(jnp.bfloat16), None), "x is bfloat16.*dtype=float32"),
    )
    def test_operands(self, change, message):
        def f(moe, x, experts, weights):
            x, scales = change(x)
            return moe.dispatch(x, experts, weights, scales=scales).group_sizes

        self.assert_raises(message, f, dispatch_dtype=FP8)

    def test_quantised_rows_in_a_context_without(self):
        def f(moe, x, experts, weights):
            return moe.dispatch(x.astype(FP8), experts, weights, scales=x[:, :2]).group_sizes

        self.assert_raises("x is float8_e4m3fn, and the context was made with dtype=float32", f)

    def test_gradient_of_quantised_tokens(self):
        def f(moe, x, experts, weights):
            def loss(x):
                r = moe.dispatch(x, experts, weights)
                return oracle.dequantise(r.tokens, r.scales, jnp.float32).sum()

            return jax.grad(loss)(x)

        self.assert_raises(
            "no gradient: make the context with tokens_dtype=float32", f, dispatch_dtype=FP8
        )

    def test_gradient_of_rows_that_are_quantised_already(self):
        def f(moe, x, experts, weights):
            def loss(x):
                values, scales = oracle.quantise(x)
                r = moe.dispatch(values, experts, weights, scales=scales)
                return moe.combine(r.tokens, r).sum()

            return jax.grad(loss)(x)

        self.assert_raises(
            "x is float8_e4m3fn, and such rows have no gradient: pass x as float32",
            f,
            dispatch_dtype=FP8,
            tokens_dtype=jnp.float32,
        )

    def test_memory_counts_the_rows_of_gradients(self):
        sizes = dict(num_ranks=2, num_experts=4, top_k=2, max_tokens=512, hidden=7168)
        plain = jf.moe.ExpertParallelConfig(**sizes).memory_bytes()
        quantised = jf.moe.ExpertParallelConfig(**sizes, dispatch_dtype=FP8).memory_bytes()
        rows = 2 * 2 * 512 * 7168 * 2
        self.assertGreaterEqual(quantised, rows)
        self.assertLessEqual(quantised, plain)


if __name__ == "__main__":
    absltest.main()
