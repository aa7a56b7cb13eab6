"""Every failure is an error that names what is wrong, in time, and the program can go on."""

import functools
import os
import threading
import time
import types
from unittest import mock

import failures_programs as programs
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax import lax
from moe_testing import Case, context, flat, on_ranks
from processes_testing import FAST

import jax_fabric as jf
from jax_fabric import _core
from jax_fabric.testing import launch


@functools.cache
def outcomes():
    """What three processes found; see failures_programs.run_all."""
    with mock.patch.dict(os.environ, {"XLA_FLAGS": FAST}):
        results = launch.run(programs.run_all, processes=3, timeout_s=200)
    return tuple(result.value for result in results)


class AbsentRankTest(parameterized.TestCase):
    @parameterized.parameters(("combine", 1), ("dispatch", 0))
    def test_all_others_name_it_at_the_deadline_and_go_on(self, when, absent):
        for process, outcome in enumerate(outcomes()):
            found = outcome[when]
            self.assertNotIn("failed", found, found)
            if process == absent:
                # It came when the others had given up, or had closed their fabric as well.
                late = (
                    "DEADLINE_EXCEEDED: moe" if when == "combine" else "UNAVAILABLE: moe.* is lost"
                )
                self.assertRegex(found["late"], late)
                continue
            self.assertIn("DEADLINE_EXCEEDED: moe", found["error"])
            self.assertIn("channel 0", found["error"])
            # Its own words, or those of the one whose deadline came first.
            self.assertRegex(found["error"], rf"rank [012] waited 2 s for rank(\(s\))? {absent}\b")
            if absent != 0:
                self.assertIn(f"moe {when} (channel 0, call ", found["error"])
            self.assertLess(found["seconds"], 10.0)
            # What comes after it fails at once, with the same cause; by another exception where JAX
            # runs one of them inline.
            self.assertEqual(*(found[each].split(": ", 1)[1] for each in ("again", "error")))
            self.assertLess(found["seconds_again"], 1.0)
            self.assertIn(found["check"], found["error"])
            self.assertEqual(found["other_work"], 512.0)
            self.assertTrue(found["survivors"])
        # The first deadline ends the others' waits as well.
        seconds = [outcome[when].get("seconds", 0) for outcome in outcomes()]
        self.assertGreater(max(seconds), programs.DEADLINE_S - 0.1)

    def test_a_killed_process_is_named_and_the_others_end_well(self):
        with (
            mock.patch.dict(os.environ, {"XLA_FLAGS": FAST}),
            self.assertRaises(launch.LaunchError) as caught,
        ):
            launch.run(
                programs.killed, 2, processes=3, timeout_s=120, grace_s=60, distributed=False
            )
        *survivors, victim = caught.exception.results
        self.assertEqual(victim.exit_code, -9)
        for result in survivors:
            self.assertEqual(result.exit_code, 0, result.output)
            self.assertRegex(
                result.value["error"],
                r"UNAVAILABLE: moe dispatch \(channel 0.*: rank [01] waits for rank 2, which is lo",
            )
            # At once, and not at the deadline.
            self.assertLess(result.value["seconds"], programs.DEADLINE_S)
            self.assertTrue(result.value["survivors"])


class DeadlineTest(parameterized.TestCase):
    @parameterized.parameters(0.05, 1.0)
    def test_a_late_rank_is_named_at_the_deadline(self, deadline_s):
        """And not before, and long before the rank comes."""
        case = Case(ranks=2, tokens=4, experts=4, top_k=2, hidden=8)
        come = threading.Event()
        self.addCleanup(come.set)
        # Programs with callbacks leave a token, which JAX waits for at exit; this one has failed.
        self.addCleanup(jax._src.dispatch.runtime_tokens.clear)

        def wait_on_rank_1(rank):
            if rank == 1:
                come.wait(60)
            return np.float32(0)

        def f(moe, x, e, w):
            late = jax.pure_callback(
                wait_on_rank_1, jax.ShapeDtypeStruct((), jnp.float32), lax.axis_index("ep")
            )
            return moe.dispatch(x + late, e, w).tokens

        # The fabric says so at its end, too.
        with (
            self.assertRaisesRegex(RuntimeError, "DEADLINE_EXCEEDED|waited"),
            context(case, timeout_s=deadline_s) as (mesh, moe),
        ):
            operands = [flat(each, mesh) for each in case.inputs()]
            program = on_ranks(functools.partial(f, moe), mesh, 3).lower(*operands).compile()
            begin = time.monotonic()
            with self.assertRaises((jax.errors.JaxRuntimeError, ValueError)) as caught:
                program(*operands).addressable_shards[0].data.block_until_ready()
            seconds = time.monotonic() - begin
            come.set()
            message = str(caught.exception)
            self.assertRegex(message, r"rank 0 waited \S+ s for rank(\(s\))? 1\b")
            self.assertAlmostEqual(float(message.split("waited ")[1].split()[0]), deadline_s)
            self.assertBetween(seconds, deadline_s, deadline_s + 10.0)


class DisagreementTest(parameterized.TestCase):
    @parameterized.parameters("capacity", "hidden", "channels", "dtype")
    def test_of_configurations(self, argument):
        for process, outcome in enumerate(outcomes()):
            error, seconds = outcome["disagree"][argument]
            other = r"[02]" if process == 1 else "1"
            self.assertRegex(
                error,
                rf"InvalidArgument: rank {other} has another .* configuration than rank {process}:",
            )
            self.assertIn(argument, error)
            self.assertLess(seconds, 10)

    @parameterized.parameters("different_rows", "different_operation", "one_more_call")
    def test_of_programs(self, difference):
        errors = [outcome["disagree"][difference][0] for outcome in outcomes()]
        for process, outcome in enumerate(outcomes()):
            self.assertLess(outcome["disagree"][difference][1], programs.DEADLINE_S + 10)
            if difference == "one_more_call" and process == 1:  # all that it asked for has come
                self.assertEqual(errors[process], "")
            else:
                self.assertRegex(
                    errors[process], "DEADLINE_EXCEEDED|FAILED_PRECONDITION|was closed"
                )
        if difference != "one_more_call":  # there, the rank that is ahead cannot know
            said = ["Do all ranks run the same program" in error for error in errors]
            self.assertTrue(any(said), errors)

    def test_afterwards_a_new_fabric_works(self):
        for outcome in outcomes():
            self.assertEqual(outcome["disagree"]["works"][0], "True")

    def test_overflow_is_raised_on_every_rank(self):
        for outcome in outcomes():
            error = outcome["overflow"]["error"]
            self.assertIn("18 rows were routed to the experts of rank 1", error)
            self.assertIn("capacity=5 rows", error)

    def test_overflow_of_an_element_is_raised_where_it_is_known(self):
        """See ``ExpertParallelConfig.on_overflow``."""
        for process, outcome in enumerate(outcomes()):
            error = outcome["batched overflow"]["error"]
            cause = r"element 1 of a batch of 2 has 4 rows more for rank 1 than"
            if process == 1:
                self.assertRegex(error, cause)
                continue
            self.assertEqual(error, "")
            # At once, although the rank that had it is there.
            found = outcome["batched overflow"]["next call"]
            self.assertRegex(found["error"], f"waits for rank 1, which has given up: moe.*{cause}")
            self.assertLess(found["seconds"], programs.GENEROUS_S / 2)


def mesh_of(count, axis="ep"):
    return jax.make_mesh((count,), (axis,), devices=jax.devices()[:count])


class ArgumentsTest(parameterized.TestCase):
    """Each error has the argument, what it got and what it expects."""

    @parameterized.parameters(
        (dict(timeout_s=0), r"timeout_s=0: must be above 0"),
        (dict(timeout_s=-1.5), r"timeout_s=-1.5: must be above 0"),
        (dict(timeout_s=float("nan")), r"timeout_s=nan: must be above 0"),
        (dict(timeout_s=float("inf")), r"timeout_s=inf: must be above 0 and at most 1e\+09"),
        (dict(timeout_s="x"), r"timeout_s='x': must be above 0"),
        (dict(worker_threads=0), r"worker_threads=0: must be a whole number from 1 to 1024"),
        (dict(worker_threads=1.5), r"worker_threads=1.5: must be a whole number"),
        (dict(worker_threads=2**40), r"worker_threads=1099511627776: must be"),
        (dict(bootstrap=3), r"bootstrap=3: must be a jax_fabric.bootstrap"),
        (dict(secret=5), r"secret: int is not bytes-like"),
        (dict(mesh=8), r"mesh=8: must be a jax.sharding.Mesh"),
    )
    def test_fabric(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            jf.Fabric(**({"mesh": mesh_of(2)} | arguments))

    def test_platform(self):
        gpu = types.SimpleNamespace(platform="gpu", process_index=0, id=0)
        mesh = mock.Mock(spec=jax.sharding.Mesh, devices=np.array([gpu]))
        with (
            mock.patch.object(_core, "has_cuda", return_value=False),
            self.assertRaisesRegex(ValueError, "mesh: GPUs, and this jax_fabric was built"),
        ):
            jf.Fabric(mesh)
        tpu = types.SimpleNamespace(platform="tpu", process_index=0, id=0)
        mesh = mock.Mock(spec=jax.sharding.Mesh, devices=np.array([gpu, tpu]))
        with self.assertRaisesRegex(ValueError, "mesh: devices of platform gpu, tpu: all must be"):
            jf.Fabric(mesh)

    def test_only_gpus_can_be_staged(self):
        with self.assertRaisesRegex(ValueError, "force_staged=True: only meshes of GPUs"):
            jf.Fabric(mesh_of(2), force_staged=True)
        with self.assertRaisesRegex(ValueError, "node='a': only meshes of GPUs have a choice"):
            jf.Fabric(mesh_of(2), node="a")

    def test_devices_of_others(self):
        device = types.SimpleNamespace(platform="cpu", process_index=3, id=0)
        mesh = mock.Mock(spec=jax.sharding.Mesh, devices=np.array([device]))
        with self.assertRaisesRegex(ValueError, "none of its devices belongs to process 0"):
            jf.Fabric(mesh)

    @parameterized.parameters("", "8", "31", "x")
    def test_too_small_a_thread_pool(self, value):
        with mock.patch.dict(os.environ, {"NPROC": value}):
            with (
                mock.patch.object(jf.compat, "jaxlib_needs_thread_pool_reserve", return_value=True),
                self.assertRaisesRegex(
                    RuntimeError, r"NPROC=.*8 local CPU devices.* Set NPROC=32 "
                ),
            ):
                jf.Fabric(mesh_of(8))
            # Newer ones do without.
            with mock.patch.object(
                jf.compat, "jaxlib_needs_thread_pool_reserve", return_value=False
            ):
                jf.Fabric(mesh_of(8)).close()

    @parameterized.parameters(
        (dict(axis_name="tp"), r"axis_name='tp': .* has axes \('ep',\)"),
        (dict(num_experts=0), "num_experts=0: must be a whole number from 1 to 2147483647"),
        (dict(top_k=5), "top_k=5: must be at most num_experts=4"),
        (dict(top_k=1.5), "top_k=1.5: must be a whole number"),
        (dict(max_tokens=0), "max_tokens=0: must be a whole number from 1"),
        (dict(hidden=-1), "hidden=-1: must be"),
        (dict(channels=0), "channels=0: must be"),
        (dict(channels=65), "channels=65: must be a whole number from 1 to 64"),
        (dict(hidden=True), "hidden=True: must be a whole number"),
        (dict(hidden=2**31), "hidden=2147483648: must be a whole number from 1 to 2147483647"),
        (dict(private_tokens=True), "private_tokens=True: must be"),
        (dict(capacity=0), "capacity=0: must be a whole number from 1 to 2147483647"),
        (dict(capacity=1.5), "capacity=1.5: must be a whole number"),
        (dict(capacity="x"), "capacity='x': must be a whole number"),
        (dict(max_tokens=2**30), "max_tokens=1073741824 on 2 ranks can be 4294967296 rows"),
        (dict(timeout_s="x"), "timeout_s='x': must be above 0"),
        (dict(dtype=jnp.int8), "dtype=.*int8.*: must be one of float32, bfloat16, float16"),
        (dict(combine_dtype="text"), "combine_dtype='text': must be one of float32"),
        (dict(on_overflow="ignore"), 'on_overflow=\'ignore\': must be "error" or "drop"'),
        (dict(timeout_s=0), "timeout_s=0: must be above 0"),
    )
    def test_expert_parallel(self, arguments, message):
        good = dict(axis_name="ep", num_experts=4, top_k=2, max_tokens=8, hidden=4)
        with jf.Fabric(mesh_of(2)) as fabric, self.assertRaisesRegex(ValueError, message):
            jf.moe.ExpertParallel(fabric, **(good | arguments))

    @parameterized.parameters(
        (dict(num_ranks=0), "num_ranks=0: must be"),
        (dict(num_ranks=2, top_k=9), "top_k=9: must be at most num_experts=8"),
    )
    def test_config(self, arguments, message):
        good = dict(num_ranks=4, num_experts=8, top_k=2, max_tokens=8, hidden=4)
        with self.assertRaisesRegex(ValueError, message):
            jf.moe.ExpertParallelConfig(**(good | arguments))

    def test_memory_is_counted_in_64_bits(self):
        config = jf.moe.ExpertParallelConfig(
            num_ranks=8, num_experts=256, top_k=8, max_tokens=131_072, hidden=7168
        )
        self.assertGreater(config.memory_bytes(), 2 * 8 * 131_072 * 7168 * 2)


class TraceTimeTest(parameterized.TestCase):
    """Shapes and dtypes that do not fit are errors before anything is sent."""

    CASE = Case(ranks=2, tokens=8, experts=4, top_k=2, hidden=4)

    def setUp(self):
        super().setUp()
        self.mesh, self.moe = self.enter_context(context(self.CASE))
        self.operands = [flat(each, self.mesh) for each in self.CASE.inputs()]

    def assert_raises(self, message, function, *, mesh=None):
        with self.assertRaisesRegex(ValueError, message):
            on_ranks(function, mesh or self.mesh, 3)(*self.operands)

    @parameterized.named_parameters(
        ("hidden", lambda x, e, w: (x[:, :3], e, w), r"x has shape \[8, 3\].* \[T, hidden=4\]"),
        ("rank", lambda x, e, w: (x[0], e, w), r"x has shape \[4\]"),
        (
            "dtype",
            lambda x, e, w: (x.astype("bfloat16"), e, w),
            "x is bfloat16, .* dtype=float32: ",
        ),
        ("top_k", lambda x, e, w: (x, e[:, :1], w), r"experts has shape \[8, 1\].*T=8, top_k=2"),
        ("rows", lambda x, e, w: (x, e, w[:5]), r"weights has shape \[5, 2\], and must be \[T=8"),
        (
            "ids",
            lambda x, e, w: (x, e.astype("float32"), w),
            "experts is float32, and must be integer",
        ),
        ("weights", lambda x, e, w: (x, e, e), "weights is int32, and must be floating"),
    )
    def test_dispatch(self, change, message):
        self.assert_raises(
            "dispatch: " + message, lambda *operands: self.moe.dispatch(*change(*operands)).tokens
        )

    @parameterized.parameters(-1, 1, 7)
    def test_channel(self, channel):
        message = rf"channel={channel}: this context has channels 0 to 0"
        self.assert_raises(
            "dispatch: " + message, lambda *o: self.moe.dispatch(*o, channel=channel).tokens
        )

        def combine(*operands):
            r = self.moe.dispatch(*operands)
            return self.moe.combine(r.tokens, r, channel=channel)

        self.assert_raises("combine: " + message, combine)

    @parameterized.named_parameters(
        ("rows", lambda y: y[1:], r"combine: y is float32\[31, 4\].*float32\[32, 4\]"),
        ("hidden", lambda y: y[:, 1:], r"combine: y is float32\[32, 3\]"),
        ("dtype", lambda y: y.astype("float16"), r"combine: y is float16\[32, 4\]"),
    )
    def test_combine(self, change, message):
        def f(*operands):
            r = self.moe.dispatch(*operands)
            return self.moe.combine(change(r.tokens), r)

        self.assert_raises(message, f)

    @parameterized.parameters((-1, True), (0, True), (1, False))
    def test_max_tokens(self, more, fits):
        def f(x, e, w):
            pad = lambda a: jnp.concatenate([a, a])[: 8 + more]  # noqa: E731
            r = self.moe.dispatch(pad(x), pad(e), pad(w))
            return self.moe.combine(r.tokens, r)

        if fits:
            jax.block_until_ready(on_ranks(f, self.mesh, 3)(*self.operands))
        else:
            self.assert_raises("dispatch: x has 9 rows, and max_tokens=8: raise max_tokens", f)

    def test_outside_of_shard_map(self):
        with self.assertRaisesRegex(
            ValueError, "dispatch: axis 'ep' is not bound here: .*shard_map"
        ):
            jax.jit(self.moe.dispatch)(*self.CASE.inputs())

    def test_another_mesh(self):
        mesh = mesh_of(4)
        self.operands = [flat(each, mesh) for each in Case(ranks=4, tokens=8).inputs()]
        self.assert_raises(
            "dispatch: axis 'ep' has size 4 here and 2 in the fabric's mesh",
            lambda *operands: self.moe.dispatch(*operands).tokens,
            mesh=mesh,
        )

    def test_the_same_devices_in_another_order(self):
        mesh = jax.sharding.Mesh(self.mesh.devices[::-1], ("ep",))
        operands = [flat(each, mesh) for each in self.CASE.inputs()]
        f = on_ranks(lambda *o: self.moe.dispatch(*o).tokens, mesh, 3)
        with self.assertRaisesRegex(
            Exception, "called on rank . of the axis, and this device is rank"
        ):
            jax.block_until_ready(f(*operands))


class ClosedTest(absltest.TestCase):
    def test_nothing_works_after_close(self):
        case = TraceTimeTest.CASE
        with context(case) as (mesh, moe):
            operands = [flat(each, mesh) for each in case.inputs()]
            f = on_ranks(lambda *o: moe.dispatch(*o).tokens, mesh, 3)
            jax.block_until_ready(f(*operands))
        with self.assertRaisesRegex(Exception, "fabric of this expert-parallel context was closed"):
            jax.block_until_ready(f(*operands))
        fabric = jf.Fabric(mesh)
        fabric.close()
        with self.assertRaisesRegex(RuntimeError, "this fabric was closed; make a new one"):
            jf.moe.ExpertParallel(
                fabric, axis_name="ep", num_experts=4, top_k=2, max_tokens=8, hidden=4
            )


if __name__ == "__main__":
    absltest.main()
