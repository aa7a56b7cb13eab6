"""dispatch and combine against the dense oracle, on several devices of one process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax.experimental import checkify
from jax.sharding import PartitionSpec as P
from moe_testing import Case, by_rank, context, flat, run

import jax_fabric as jf
from jax_fabric.testing import oracle, routing

KINDS = tuple(routing.GENERATORS)


def check_round_trip(case: Case, **options) -> None:
    """Dispatch bitwise, combine within the rounding of its sums."""
    x, experts, weights = case.inputs()
    with context(case, **options) as (mesh, moe):
        expected = oracle.dispatch(
            x, experts, weights, num_experts=case.experts, capacity=moe.capacity
        )

        def layer(x, experts, weights):
            r = moe.dispatch(x, experts, weights)
            # Rows past the groups are unspecified: whatever stands there must not matter.
            used = jnp.arange(moe.capacity) < r.group_sizes.sum()
            y = jnp.where(used[:, None], r.tokens, jnp.nan).astype(case.dtype)
            w = jnp.where(used, r.weights, jnp.nan)
            r = r.__class__(r.tokens, w, r.group_sizes, r.dropped, r.token, r.routes)
            tokens = jnp.where(used[:, None], r.tokens, 0)
            out = moe.combine(y * 2, r)
            plain = moe.combine(y, r, weighted=False)
            return tokens, jnp.where(used, w, 0), r.group_sizes, r.dropped, out, plain

        out = run(layer, mesh, x, experts, weights)
        tokens, row_weights, group_sizes, dropped, combined, plain = (
            by_rank(each, case.ranks) for each in out
        )
    np.testing.assert_array_equal(group_sizes, expected.group_sizes)
    np.testing.assert_array_equal(tokens, expected.tokens)
    np.testing.assert_allclose(row_weights, expected.weights, rtol=1e-6)
    np.testing.assert_array_equal(dropped, 0)
    tolerance = 1e-5 if case.dtype == jnp.float32 else 2e-2
    for got, weighted, factor in ((combined, True, 2), (plain, False, 1)):
        want = oracle.combine(
            expected.tokens * factor, expected, tokens=case.tokens, weighted=weighted
        )
        np.testing.assert_allclose(
            got.astype(np.float32), np.asarray(want, np.float32), rtol=tolerance, atol=tolerance
        )


class ForwardTest(parameterized.TestCase):
    @parameterized.parameters(
        *((kind, dtype) for kind in KINDS for dtype in ("float32", "bfloat16"))
    )
    def test_routings(self, kind, dtype):
        check_round_trip(Case(ranks=4, routing=kind, dtype=jnp.dtype(dtype), experts=8, top_k=3))

    @parameterized.parameters(1, 2, 3, 5, 6, 8)
    def test_worlds(self, ranks):
        check_round_trip(Case(ranks=ranks, experts=2 * ranks + 1, top_k=2, hidden=24))

    @parameterized.parameters(1, 7, 8, 100, 127, 128, 2880, 3072, 4096)
    def test_hidden(self, hidden):
        for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
            check_round_trip(Case(ranks=2, hidden=hidden, dtype=dtype, tokens=5, experts=5))

    @parameterized.parameters((1, 1), (2, 2), (8, 8), (11, 24), (16, 16), (5, 5), (16, 1024))
    def test_top_k(self, top_k, experts):
        check_round_trip(Case(ranks=3, top_k=top_k, experts=experts, tokens=9))

    def test_fewer_rows_than_max_tokens(self):
        case = Case(ranks=2, tokens=5)
        check_round_trip(case, max_tokens=64)

    def test_no_rows(self):
        # Cut inside of the program: XLA cannot split an operand without rows over devices.
        case = Case(ranks=2, tokens=4)
        with context(case) as (mesh, moe):

            def layer(x, experts, weights):
                r = moe.dispatch(x[:0], experts[:0], weights[:0], zero_padding=True)
                out = moe.combine(r.tokens, r)
                return r.tokens, r.group_sizes, jnp.zeros_like(x).at[:0].set(out)

            tokens, group_sizes, _ = run(layer, mesh, *case.inputs())
            np.testing.assert_array_equal(group_sizes, 0)
            np.testing.assert_array_equal(tokens, 0)


class IdsTest(parameterized.TestCase):
    @parameterized.parameters(-1, 8, 2**31 - 1, -(2**31))
    def test_ids_outside_route_nowhere(self, bad):
        case = Case(ranks=2, tokens=6, experts=8, top_k=2)
        x, experts, weights = case.inputs()
        experts = experts.at[:, 1::2, 1].set(bad).at[0, 0].set(bad)
        x = x.at[0, 0].set(jnp.nan)  # a row that goes nowhere
        expected = oracle.dispatch(x, experts, weights, num_experts=8)
        with context(case) as (mesh, moe):

            def layer(x, experts, weights):
                r = moe.dispatch(x, experts, weights, zero_padding=True)
                return r.tokens, moe.combine(r.tokens, r)

            out = run(layer, mesh, x, experts, weights)
        np.testing.assert_array_equal(by_rank(out[0], 2), expected.tokens)
        self.assertTrue(np.isfinite(np.asarray(out[1])).all())
        np.testing.assert_array_equal(by_rank(out[1], 2)[0, 0], 0)

    @parameterized.parameters("int8", "uint8", "int16", "uint32", "int64", "uint64")
    def test_ids_of_any_integer_type(self, dtype):
        case = Case(ranks=2, tokens=6, experts=256, top_k=2)
        x, experts, weights = case.inputs()
        experts = (experts % 128).at[0, 0].set(-1 if dtype.startswith("int") else 127)
        expected = oracle.dispatch(x, experts, weights, num_experts=256)
        with jax.enable_x64(dtype.endswith("64")), context(case) as (mesh, moe):

            def layer(x, experts, weights):
                return moe.dispatch(x, experts, weights, zero_padding=True).tokens

            out = run(layer, mesh, x, experts.astype(dtype), weights)
        np.testing.assert_array_equal(by_rank(out, 2), expected.tokens)

    @parameterized.parameters(
        (7, None), (-1, None), (8, "check_experts: ids outside of"), (-2, "ids")
    )
    def test_checkify_raises(self, value, message):
        case = Case(ranks=2, tokens=6, experts=8, top_k=2)
        x, experts, weights = case.inputs()
        experts = experts.at[1, 3, 1].set(value)
        # checkify does not know axes of type Explicit, as jax.make_mesh makes them.
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("ep",))
        sizes = dict(num_experts=8, top_k=2, max_tokens=6, hidden=case.hidden, dtype=case.dtype)
        with jf.Fabric(mesh) as fabric:
            moe = jf.moe.ExpertParallel(fabric, axis_name="ep", **sizes)

            def layer(x, experts, weights):
                moe.check_experts(experts)
                r = moe.dispatch(x, experts, weights)
                return moe.combine(r.tokens, r)

            sharded = jax.shard_map(layer, mesh=mesh, in_specs=P("ep"), out_specs=P("ep"))
            operands = [flat(each, mesh) for each in (x, experts, weights)]
            error, _ = jax.jit(checkify.checkify(sharded))(*operands)
        if message is None:
            error.throw()
        else:
            with pytest.raises(checkify.JaxRuntimeError, match=message):
                error.throw()


class DropTest(absltest.TestCase):
    def test_drop_counts_and_keeps_the_first(self):
        case = Case(ranks=2, tokens=8, experts=4, top_k=2, routing="one_rank")
        x, experts, weights = case.inputs()
        expected = oracle.dispatch(x, experts, weights, num_experts=4, capacity=5)
        with context(case, capacity=5, on_overflow="drop") as (mesh, moe):

            def layer(x, experts, weights):
                r = moe.dispatch(x, experts, weights, zero_padding=True)
                return r.tokens, r.group_sizes, r.dropped, moe.combine(r.tokens, r)

            out = run(layer, mesh, x, experts, weights)
        tokens, group_sizes, dropped, combined = (by_rank(each, 2) for each in out)
        self.assertGreater(int(np.asarray(dropped).sum()), 0)
        np.testing.assert_array_equal(dropped, expected.dropped)
        np.testing.assert_array_equal(group_sizes, expected.group_sizes)
        np.testing.assert_array_equal(tokens, expected.tokens)
        want = oracle.combine(expected.tokens, expected, tokens=8)
        np.testing.assert_allclose(combined, want, rtol=1e-5, atol=1e-6)

    def test_overflow_is_an_error_that_names_rank_and_count(self):
        case = Case(ranks=2, tokens=8, experts=4, top_k=2, routing="first_expert")
        x, experts, weights = case.inputs()
        # The fabric's own check raises on leaving the block as well.
        with (
            pytest.raises((jax.errors.JaxRuntimeError, RuntimeError), match="capacity=5 rows"),
            context(case, capacity=5) as (mesh, moe),
        ):
            run(lambda *operands: moe.dispatch(*operands).tokens, mesh, x, experts, weights)


if __name__ == "__main__":
    absltest.main()
