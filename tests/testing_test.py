"""The oracles against loops in NumPy, the routings, the environment and the launcher."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jax_fabric.testing import environment, launch, oracle, routing

SIZES = dict(ranks=4, tokens=6, experts=7, top_k=3)
ROOT = Path(__file__).parents[1]


def inputs(kind: str, *, hidden: int = 5, **sizes):
    routed = routing.generate(kind, **sizes)
    shape = (*routed.experts.shape[:2], hidden)
    xs = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    return xs, routed


def rows_in_order(routed: routing.Routing, *, ranks: int, experts: int, rank: int):
    """(expert, source, token, weight) of a rank's rows, by loops."""
    local = -(-experts // ranks)
    for expert in range(rank * local, min((rank + 1) * local, experts)):
        for source, of_source in enumerate(routed.experts):
            for token, ids in enumerate(of_source):
                if expert in ids:
                    weights = routed.weights[source, token]
                    yield expert, source, token, weights[ids == expert].sum()


class TestOracle:
    @pytest.mark.parametrize("kind", routing.GENERATORS)
    def test_dispatch_is_what_loops_give(self, kind):
        xs, routed = inputs(kind, **SIZES)
        got = oracle.dispatch(xs, routed.experts, routed.weights, num_experts=7)
        assert got.tokens.shape == (4, 4 * 6 * 2, 5)
        for rank in range(4):
            rows = list(rows_in_order(routed, ranks=4, experts=7, rank=rank))
            sizes = [sum(row[0] == rank * 2 + e for row in rows) for e in range(2)]
            np.testing.assert_array_equal(got.group_sizes[rank], sizes)
            assert int(got.dropped[rank, 0]) == 0
            for i, (_, source, token, weight) in enumerate(rows):
                np.testing.assert_array_equal(got.tokens[rank, i], xs[source, token])
                np.testing.assert_allclose(got.weights[rank, i], weight, rtol=1e-6)
                assert got.source[rank, i] == source * 6 + token
            assert (got.source[rank, len(rows) :] == -1).all()

    @pytest.mark.parametrize("capacity", [1, 5, 12])
    def test_rows_past_the_capacity_are_dropped_and_counted(self, capacity):
        xs, routed = inputs("first_expert", **SIZES)
        arguments = (xs, routed.experts, routed.weights)
        whole = oracle.dispatch(*arguments, num_experts=7)
        got = oracle.dispatch(*arguments, num_experts=7, capacity=capacity)
        np.testing.assert_array_equal(got.tokens[0], whole.tokens[0, :capacity])
        np.testing.assert_array_equal(got.group_sizes, [[capacity, 0], [0, 0], [0, 0], [0, 0]])
        np.testing.assert_array_equal(got.dropped[:, 0], [24 - capacity, 0, 0, 0])

    @pytest.mark.parametrize("tokens", [0, 1])
    def test_few_tokens(self, tokens):
        xs, routed = inputs("uniform", **(SIZES | {"tokens": tokens}))
        arguments = (xs, routed.experts, routed.weights)
        got = oracle.dispatch(*arguments, num_experts=7, capacity=8)
        assert int(got.group_sizes.sum()) == 4 * tokens * 3
        assert oracle.combine(got.tokens, got, tokens=tokens).shape == xs.shape

    @pytest.mark.parametrize("kind", ["uniform", "duplicates", "holes"])
    def test_combine_of_dispatch_is_the_dense_layer(self, kind):
        xs, routed = inputs(kind, **SIZES)
        experts = routed.experts
        scale = jnp.arange(1.0, 9.0)

        @jax.jit
        def through_rows(xs, weights):
            d = oracle.dispatch(xs, experts, weights, num_experts=7)
            ends = jnp.cumsum(d.group_sizes, axis=1)
            place = jnp.arange(d.tokens.shape[1])
            expert = (place[None] >= ends[:, :1]) + 2 * jnp.arange(4)[:, None]
            y = jnp.where((d.source >= 0)[..., None], d.tokens * scale[expert][..., None], jnp.nan)
            return oracle.combine(y, d, tokens=6)

        @jax.jit
        def dense(xs, weights):
            fn = lambda rows, expert: rows * scale[expert]  # noqa: E731
            return oracle.dense_moe(xs, experts, weights, fn, num_experts=7)

        np.testing.assert_allclose(
            through_rows(xs, routed.weights), dense(xs, routed.weights), rtol=1e-5, atol=1e-6
        )
        gradients = [
            jax.jit(jax.grad(lambda *a, f=f: (f(*a) ** 2).sum(), argnums=(0, 1)))(
                xs, routed.weights
            )
            for f in (through_rows, dense)
        ]
        for got, want in zip(*gradients, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)

    def test_unweighted_combine_sums_rows(self):
        xs, routed = inputs("one_rank", **SIZES)
        d = oracle.dispatch(xs, routed.experts, routed.weights, num_experts=7)
        out = oracle.combine(jnp.ones_like(d.tokens), d, tokens=6, weighted=False)
        named = [[[len({e for e in ids if 0 <= e < 7})] for ids in rank] for rank in routed.experts]
        np.testing.assert_array_equal(out, np.broadcast_to(named, out.shape))

    def test_partial_sums_are_rounded_once(self):
        xs = jnp.ones((2, 1, 1), jnp.float32)
        experts, weights = jnp.array([[[0, 1]]] * 2), jnp.ones((2, 1, 2))
        d = oracle.dispatch(xs, experts, weights, num_experts=4)
        # 256 + 1 is not a bfloat16, 256 + 1 + 1 is: rounding each addition would give 256.
        y = d.tokens.at[0, :, 0].set(jnp.array([256.0, 256.0, 1.0, 1.0]))
        exact = oracle.combine(y, d, tokens=1)
        rounded = oracle.combine(y, d, tokens=1, combine_dtype=jnp.bfloat16)
        np.testing.assert_array_equal(exact[:, 0, 0], [257, 257])
        np.testing.assert_array_equal(rounded[:, 0, 0], [256, 256])

    def test_nan_that_is_not_routed_goes_nowhere(self):
        xs, routed = inputs("uniform", **SIZES)
        experts = routed.experts.copy()
        experts[1, 2] = -1
        xs[1, 2] = np.nan

        @jax.jit
        def loss(xs, weights):
            fn = lambda rows, expert: rows * rows * expert  # noqa: E731
            dense = oracle.dense_moe(xs, experts, weights, fn, num_experts=7)
            d = oracle.dispatch(xs, experts, weights, num_experts=7)
            return (dense**2).sum() + (oracle.combine(d.tokens, d, tokens=6) ** 2).sum()

        value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(xs, routed.weights)
        assert np.isfinite(value)
        assert all(np.isfinite(g).all() for g in gradients)
        assert (gradients[0][1, 2] == 0).all()

    @pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint32])
    def test_ids_of_any_integer_type(self, dtype):
        experts = jnp.asarray(np.array([[0, 6], [np.iinfo(dtype).max, 3]], dtype))
        got = oracle.expert_weights(experts, jnp.ones((2, 2)), num_experts=300)
        want = {(0, 0), (0, 6), (1, 3)} | ({(1, 127)} if dtype is np.int8 else set())
        assert {tuple(place) for place in np.argwhere(got).tolist()} == want

    def test_shapes_that_do_not_belong_together(self):
        with pytest.raises(ValueError, match=r"experts \(4, 5, 3\)"):
            oracle.dispatch(
                jnp.ones((4, 6, 2)), jnp.ones((4, 5, 3), int), jnp.ones((4, 5, 3)), num_experts=7
            )


class TestRouting:
    @pytest.mark.parametrize("kind", routing.GENERATORS)
    @pytest.mark.parametrize(
        "sizes", [SIZES, dict(ranks=5, tokens=3, experts=3, top_k=3), SIZES | {"tokens": 0}]
    )
    def test_every_kind(self, kind, sizes):
        routed = routing.generate(kind, **sizes, seed=1)
        assert routed.experts.dtype == np.int32
        assert routed.weights.dtype == np.float32
        assert routed.experts.shape == (sizes["ranks"], sizes["tokens"], sizes["top_k"])
        np.testing.assert_allclose(routed.weights.sum(-1), 1, rtol=1e-6)
        again = routing.generate(kind, **sizes, seed=1)
        np.testing.assert_array_equal(routed.experts, again.experts)

    def test_kinds_are_what_they_say(self):
        sizes = dict(ranks=4, tokens=32, experts=16, top_k=4)
        ids = {kind: routing.generate(kind, **sizes).experts for kind in routing.GENERATORS}
        assert (np.diff(np.sort(ids["uniform"], axis=-1)) > 0).all()
        assert len(np.unique(ids["one_rank"] // 4)) == 1
        own = ids["own_rank"] // 4
        np.testing.assert_array_equal(own, np.broadcast_to([[[0]], [[1]], [[2]], [[3]]], own.shape))
        assert ((ids["holes"] < 0) | (ids["holes"] >= 16)).sum() == 4 * 32
        assert (ids["last_row_only"][:, :-1] == -1).all()
        assert (ids["last_row_only"][:, -1] >= 0).all()
        assert (np.diff(np.sort(ids["duplicates"], axis=-1)) == 0).any()
        assert (ids["silent_ranks"][::2] == -1).all()
        assert set(np.unique(ids["deaf_ranks"] // 4)) == {-1, 1, 3}
        counts = np.bincount(ids["zipf"].ravel(), minlength=16)
        assert counts.max() > 3 * np.median(counts)

    @pytest.mark.parametrize(
        "change, message",
        [
            ({"top_k": 8}, r"top_k \(8\) is more than experts \(7\)"),
            ({"ranks": 0}, "ranks is 0"),
            ({"kind": "no such"}, "there are: uniform, "),
        ],
    )
    def test_errors_name_the_value(self, change, message):
        with pytest.raises(ValueError, match=message):
            routing.generate(**({"kind": "uniform"} | SIZES | change))


class TestEnvironment:
    def test_other_flags_are_kept(self):
        got = environment.cpu_environment(
            3, {"XLA_FLAGS": "--a=1 --xla_force_host_platform_device_count=9 --b", "X": "y"}
        )
        assert got["XLA_FLAGS"].split() == [
            "--a=1",
            "--b",
            "--xla_force_host_platform_device_count=3",
        ]
        assert (got["X"], got["JAX_PLATFORMS"], got["NPROC"]) == ("y", "cpu", "32")

    @pytest.mark.parametrize(
        "given, devices, want",
        [("4", 8, "32"), ("64", 8, "64"), ("32", 16, "64"), ("many", 1, "32")],
    )
    def test_nproc_only_grows(self, given, devices, want):
        assert environment.cpu_environment(devices, {"NPROC": given})["NPROC"] == want

    def test_a_started_jax_is_noticed(self):
        assert len(jax.devices()) == 8
        assert environment.jax_has_started()
        environment.prepare_cpu(8)
        with pytest.raises(RuntimeError, match=r"has already started.*device_count=3"):
            environment.prepare_cpu(3)

    def test_an_imported_jax_has_not_started(self):
        program = (
            "from jax_fabric.testing import environment as e; import jax;"
            "assert not e.jax_has_started(); e.prepare_cpu(3); assert len(jax.devices()) == 3;"
            "assert e.jax_has_started()"
        )
        clean = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
        clean["PYTHONPATH"] = os.pathsep.join(sys.path)
        subprocess.run([sys.executable, "-c", program], env=clean, check=True)


# What the launcher runs.


def sum_over_all(scale: float) -> tuple[int, list[float]]:
    mesh = jax.make_mesh((4,), ("x",))
    local = np.arange(4, dtype=np.float32) * scale
    x = jax.make_array_from_callback((4,), NamedSharding(mesh, P("x")), lambda i: local[i])
    total = jax.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    print("process", jax.process_index(), "is here")
    return jax.process_index(), np.asarray(jax.jit(total)(x)).tolist()


def own_rank() -> int:
    return int(os.environ["JAX_PROCESS_ID"])


def fail_on(rank: int, how: str) -> None:
    if own_rank() == rank:
        print("about to fail")
        if how == "raise":
            raise ValueError("on purpose")
        os.kill(os.getpid(), signal.SIGSEGV)
    if own_rank() == 0:
        return
    time.sleep(60)


def hang_with_a_child() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    if own_rank() == 1:
        time.sleep(60)


class TestLaunch:
    def test_processes_find_each_other(self):
        results = launch.run(sum_over_all, 2.0, processes=2, local_devices=2, timeout_s=200)
        assert [r.value for r in results] == [(0, [12.0]), (1, [12.0])]
        assert [r.exit_code for r in results] == [0, 0]
        assert "process 1 is here" in results[1].output
        assert results[1].describe().startswith("rank 1 succeeded after ")

    @pytest.mark.parametrize(
        "how, cause, trace",
        [
            ("raise", "failed with exit code 1", "ValueError: on purpose"),
            ("signal", "was ended by SIGSEGV", "about to fail"),
        ],
    )
    def test_the_first_failure_is_reported_and_ends_the_others(self, how, cause, trace):
        begin = time.monotonic()
        with pytest.raises(launch.LaunchError) as caught:
            launch.run(fail_on, 1, how, processes=3, timeout_s=200, grace_s=0.1, distributed=False)
        assert time.monotonic() - begin < 60
        message = str(caught.value)
        assert message.startswith(f"of 3 processes, rank 1 {cause} after ")
        assert "rank 2 was still running and has been ended" in message
        assert f"  | {trace}" in message
        assert caught.value.first.rank == 1
        assert [r.rank for r in caught.value.results] == [0, 1, 2]

    def test_a_deadline_says_where_each_process_hangs(self):
        with pytest.raises(launch.LaunchError) as caught:
            launch.run(hang_with_a_child, processes=2, timeout_s=20, distributed=False)
        assert "of 2 processes, some did not end within 20 s" in str(caught.value)
        assert caught.value.first.rank == 1
        assert "in hang_with_a_child" in caught.value.first.output

    def test_a_script_gets_its_arguments(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text("import sys; print(__name__, sys.argv[1:])")
        (result,) = launch.run(script, "a", 1, processes=1, distributed=False)
        assert result.output == "__main__ ['a', '1']\n"
        assert result.value is None

    def test_prefixes_come_before_the_commands(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text("import os; print('host', os.environ['HOST'])")
        prefixes = [["env", "HOST=a"], ["env", "HOST=b"]]
        results = launch.run(script, processes=2, distributed=False, prefixes=prefixes)
        assert [result.output for result in results] == ["host a\n", "host b\n"]
        with pytest.raises(ValueError, match="prefixes has 2 entries for 3 processes"):
            launch.run(script, processes=3, prefixes=prefixes)

    @pytest.mark.parametrize(
        "target, message",
        [
            ("no_colon", "expected 'module:function' or a path"),
            ("missing.py", "there is no script missing.py"),
            (lambda: None, "is not at the top of its module"),
        ],
    )
    def test_targets_that_cannot_be_found(self, target, message):
        with pytest.raises(ValueError, match=message):
            launch.run(target, processes=1)


class TestPlainJaxPeer:
    @pytest.mark.parametrize("kind", ["holes", "duplicates"])
    def test_agrees_with_the_oracle(self, kind, monkeypatch):
        monkeypatch.syspath_prepend(ROOT / "benchmarks" / "peers")
        import plain_jax

        peer = plain_jax.PlainExpertParallel(4, "ep", num_experts=7, top_k=3, max_tokens=6)
        xs, routed = inputs(kind, **SIZES)
        want = oracle.dispatch(xs, routed.experts, routed.weights, num_experts=7)

        def round_trip(x, experts, weights):
            d = peer.dispatch(x, experts, weights)
            return d.tokens, d.group_sizes, d.weights, peer.combine(2 * d.tokens, d)

        mesh = jax.make_mesh((4,), ("ep",), devices=jax.devices()[:4])
        mapped = jax.shard_map(round_trip, mesh=mesh, in_specs=P("ep"), out_specs=P("ep"))
        flat = [a.reshape(-1, a.shape[-1]) for a in (xs, routed.experts, routed.weights)]
        got = jax.jit(mapped)(*jax.device_put(flat, NamedSharding(mesh, P("ep"))))
        tokens, sizes, weights, out = (np.asarray(a) for a in got)
        np.testing.assert_array_equal(tokens.reshape(want.tokens.shape), want.tokens)
        np.testing.assert_array_equal(sizes.reshape(4, 2), want.group_sizes)
        np.testing.assert_allclose(weights.reshape(4, -1), want.weights, rtol=1e-6)
        combined = oracle.combine(2 * want.tokens, want, tokens=6)
        np.testing.assert_allclose(out.reshape(combined.shape), combined, rtol=1e-5, atol=1e-6)
