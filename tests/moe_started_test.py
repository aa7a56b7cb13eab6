"""Exchanges in two halves: the same results and gradients as whole ones."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax import lax
from moe_testing import Case, context, flat, on_ranks

import jax_fabric as jf

REPEATS = 10


def whole_layer(moe, x, experts, weights, scale=2.0, **options):
    r = moe.dispatch(x, experts, weights, **options)
    return moe.combine(r.tokens * scale, r, **options)


def split_layer(moe, x, experts, weights, scale=2.0, *, overlap=(), **options):
    r = moe.dispatch_done(moe.dispatch_start(x, experts, weights, **options), overlap=overlap)
    return moe.combine_done(moe.combine_start(r.tokens * scale, r, **options), overlap=overlap)


class StartedTest(parameterized.TestCase):
    CASE = Case(ranks=4, tokens=6, experts=8, top_k=2, hidden=16, routing="holes")

    def setUp(self, **options):
        super().setUp()
        self.inputs = self.CASE.inputs()

    def run_both(self, whole, split, *, repeats=1, check_vma=False, case=CASE, **options):
        """Both give the same bits, however often they run."""
        with context(case, **options) as (mesh, moe):
            operands = [flat(each, mesh) for each in case.inputs()]
            want, got = (
                on_ranks(functools.partial(f, moe), mesh, 3, check_vma=check_vma)
                for f in (whole, split)
            )
            want = jax.tree.map(np.asarray, want(*operands))
            # All in flight at once, as far as JAX dispatches ahead.
            for result in [got(*operands) for _ in range(repeats)]:
                jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, result), want)
        return want

    @parameterized.product(
        dtype=[jnp.float32, jnp.bfloat16],
        routing=["uniform", "duplicates"],
        check_vma=[True, False],
    )
    def test_results(self, dtype, routing, check_vma):
        case = Case(ranks=4, tokens=7, experts=6, top_k=3, hidden=20, dtype=dtype, routing=routing)

        def whole(moe, x, e, w):
            r = moe.dispatch(x, e, w, zero_padding=True)
            return r, moe.combine(r.tokens, r), moe.combine(r.tokens, r, weighted=False)

        def split(moe, x, e, w):
            r = moe.dispatch_done(moe.dispatch_start(x, e, w), zero_padding=True)
            weighted = moe.combine_done(moe.combine_start(r.tokens, r))
            pending = moe.combine_start(r.tokens, r, weighted=False, channel=1)
            return r, weighted, moe.combine_done(pending)

        with context(case, channels=2) as (mesh, moe):
            operands = [flat(each, mesh) for each in case.inputs()]
            (r, *sums), (started, *started_sums) = (
                on_ranks(functools.partial(f, moe), mesh, 3, check_vma=check_vma)(*operands)
                for f in (whole, split)
            )
        for name in ("tokens", "weights", "group_sizes", "dropped"):
            np.testing.assert_array_equal(
                np.asarray(getattr(started, name)), np.asarray(getattr(r, name)), name
            )
        jax.tree.map(np.testing.assert_array_equal, started.routes, r.routes)
        jax.tree.map(np.testing.assert_array_equal, started_sums, sums)

    def test_many_runs_in_flight(self):
        self.run_both(whole_layer, split_layer, repeats=REPEATS)

    # The gradient of a linear loss needs no result of combine, and still waits until it is done.
    @parameterized.product(check_vma=[False, True], power=[1, 2])
    def test_gradients(self, check_vma, power):
        def gradient(layer):
            def of(moe, x, e, w):
                def loss(x, w):
                    out = layer(moe, x, e, w)
                    return (out**power * jnp.arange(out.size).reshape(out.shape)).sum()

                return jax.grad(loss, argnums=(0, 1))(x, w)

            return of

        dx, dw = self.run_both(
            gradient(whole_layer),
            gradient(split_layer),
            repeats=3,
            check_vma=check_vma,
            timeout_s=10.0,
        )
        self.assertGreater(np.abs(dx).max(), 0)
        self.assertGreater(np.abs(dw).max(), 0)

    @parameterized.named_parameters(("plain", None), ("saved", jf.moe.save_exchanges()))
    def test_scan_with_remat(self, policy):
        def gradient(layer):
            def of(moe, x, e, w):
                @functools.partial(jax.checkpoint, policy=policy)
                def step(x, scale):
                    return layer(moe, x, e, w, scale), None

                def loss(x):
                    return (lax.scan(step, x, jnp.array([1.0, 0.5, 2.0], x.dtype))[0] ** 2).sum()

                return jax.grad(loss)(x)

            return of

        self.run_both(gradient(whole_layer), gradient(split_layer), repeats=2)

    @parameterized.parameters((0, 1), (1, 0))
    def test_two_batches_at_once(self, *order):
        """Each has a channel of its own; the halves of one lie between those of the other."""

        def whole(moe, x, e, w):
            return [whole_layer(moe, each, e, w) for each in (x, -x)]

        def split(moe, x, e, w):
            sent = [moe.dispatch_start(x * (1, -1)[i], e, w, channel=i) for i in (0, 1)]
            back = {}
            for i in order:
                r = moe.dispatch_done(sent[i])
                back[i] = moe.combine_start(r.tokens * 2.0, r, channel=i)
            return [moe.combine_done(back[i]) for i in (0, 1)]

        self.run_both(whole, split, repeats=REPEATS, channels=2)

    def test_whole_exchanges_beside_a_started_one(self):
        def whole(moe, x, e, w):
            return whole_layer(moe, x, e, w), whole_layer(moe, -x, e, w)

        def split(moe, x, e, w):
            pending = moe.dispatch_start(x, e, w, channel=1)
            beside = whole_layer(moe, -x, e, w)
            r = moe.dispatch_done(pending, overlap=beside)
            return moe.combine(r.tokens * 2.0, r), beside

        self.run_both(whole, split, repeats=REPEATS, channels=2)

    def test_overlap_is_computed_first(self):
        """The second half takes it as an operand: that is the one order that XLA keeps."""
        with context(self.CASE) as (mesh, moe):

            def f(x, e, w):
                return split_layer(moe, x, e, w, overlap={"a": jnp.sin(x), "b": (x @ x.T,)})

            operands = [flat(each, mesh) for each in self.inputs]
            text = on_ranks(f, mesh, 3).lower(*operands).compile().as_text()
        for target, others in (("jf_moe_dispatch_done", 7), ("jf_moe_combine_done", 9)):
            (call,) = [
                line for line in text.splitlines() if f'custom_call_target="{target}"' in line
            ]
            operands = call.split("custom-call(", 1)[1].split(")", 1)[0].split("%")[1:]
            self.assertLen(operands, others + 2, call)


class StartedErrorsTest(parameterized.TestCase):
    CASE = Case(ranks=2, tokens=4, experts=4, top_k=2, hidden=8)

    def error_of(self, function, *, works_afterwards, **options):
        # A fabric that something went wrong on says so at its end, too.
        at_end = contextlib.nullcontext() if works_afterwards else self.assertRaises(RuntimeError)
        with at_end, context(self.CASE, **options) as (mesh, moe):
            operands = [flat(each, mesh) for each in self.CASE.inputs()]
            good = on_ranks(functools.partial(split_layer, moe), mesh, 3)
            want = np.asarray(good(*operands))
            with self.assertRaises((jax.errors.JaxRuntimeError, ValueError)) as caught:
                jax.block_until_ready(
                    on_ranks(functools.partial(function, moe), mesh, 3)(*operands)
                )
            if works_afterwards:
                np.testing.assert_array_equal(np.asarray(good(*operands)), want)
        return str(caught.exception)

    def test_done_twice(self):
        def f(moe, x, e, w):
            pending = moe.dispatch_start(x, e, w)
            first = moe.dispatch_done(pending)
            return first.tokens + moe.dispatch_done(pending, overlap=first.token).tokens

        self.assertRegex(
            self.error_of(f, works_afterwards=True),
            r"moe dispatch \(channel 0, rank .\): no call \d+ was started here that has not "
            r"been done",
        )

    def test_two_in_flight_on_one_channel(self):
        def f(moe, x, e, w):
            first = moe.dispatch_start(x, e, w)
            second = moe.dispatch_start(-x, e, w, after=first.ticket)
            done = moe.dispatch_done(first, overlap=second.ticket).tokens
            return done + moe.dispatch_done(second).tokens

        self.assertRegex(
            self.error_of(f, works_afterwards=False, timeout_s=1.0),
            r"waited 1 s for its turn: call \d+ was started on this rank and nobody has called "
            r"its done: calls in flight at once need channels of their own",
        )

    def test_vmap(self):
        def f(moe, x, e, w):
            x, e, w = (jnp.stack([each, each]) for each in (x, e, w))
            return jax.vmap(lambda *o: moe.dispatch_start(*o).ticket)(x, e, w)

        self.assertIn(
            "dispatch_start: an exchange in two halves cannot be batched by vmap: use dispatch",
            self.error_of(f, works_afterwards=True),
        )

    @parameterized.parameters(
        ("dispatch_done", r"pending=.*: must be what dispatch_start returned"),
        ("combine_done", r"pending=.*: must be what combine_start returned"),
    )
    def test_wrong_pending(self, call, message):
        self.assertRegex(
            self.error_of(lambda moe, *o: getattr(moe, call)(o[0]), works_afterwards=True), message
        )

    def test_arguments(self):
        self.assertIn(
            "dispatch_start: x has shape [4, 7]",
            self.error_of(
                lambda moe, x, e, w: moe.dispatch_start(x[:, :7], e, w).ticket,
                works_afterwards=True,
            ),
        )
        self.assertIn(
            "dispatch_start: channel=1: this context has channels 0 to 0",
            self.error_of(
                lambda moe, *o: moe.dispatch_start(*o, channel=1).ticket, works_afterwards=True
            ),
        )


if __name__ == "__main__":
    absltest.main()
