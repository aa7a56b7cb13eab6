"""The demonstration: its parts, its verdict, and the command."""

import importlib.util
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jax_fabric.cli import main as cli
from jax_fabric.demo import checks, model, moe, report, text
from jax_fabric.demo.config import DemoConfig

SMALL = DemoConfig(
    ranks=4, tokens=8, hidden=16, experts=6, top_k=2, layers=1, steps=6, repeats=2, timeout_s=120
)


class TestText:
    def test_is_plain_and_long_enough(self):
        corpus = text.load()
        assert len(corpus.codes) > 20_000
        assert corpus.codes.max() == len(corpus.alphabet) - 1
        assert "".join(corpus.alphabet[c] for c in corpus.codes[:5]) == "Alice"

    def test_batches_depend_on_step_and_seed_alone(self):
        corpus = text.load()
        size = dict(rows=3, length=9)
        batch = corpus.batch(4, **size, seed=1)
        assert batch.shape == (3, 9)
        np.testing.assert_array_equal(batch, corpus.batch(4, **size, seed=1))
        assert (batch != corpus.batch(5, **size, seed=1)).any()
        assert (batch != corpus.batch(4, **size, seed=2)).any()


class TestConfig:
    @pytest.mark.parametrize(
        "change, message",
        [
            ({"experts": 0}, "experts is 0"),
            ({"processes": 3}, r"ranks \(8\) must be a multiple of processes \(3\)"),
            ({"private_tokens": 129}, r"private_tokens \(129\) is more than tokens \(128\)"),
            ({"private_tokens": 0}, "private_tokens is 0"),
            ({"top_k": 17}, r"top_k \(17\) is more than experts \(16\)"),
            ({"dtype": "int8"}, "must be float32 or bfloat16"),
            ({"steps": 1}, "no loss can fall"),
        ],
    )
    def test_errors_name_the_value(self, change, message):
        with pytest.raises(ValueError, match=message):
            DemoConfig(**change)

    @pytest.mark.parametrize(
        "tokens, rows, sequence", [(1, 1, 1), (64, 1, 64), (96, 2, 48), (128, 2, 64), (67, 67, 1)]
    )
    def test_batch_shape(self, tokens, rows, sequence):
        config = DemoConfig(tokens=tokens)
        assert (config.rows, config.sequence) == (rows, sequence)


class TestExpertLayer:
    """What lets rows past the last group be anything: ragged_dot reads none of them."""

    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
    def test_nan_past_the_last_group_reaches_nothing(self, dtype):
        sizes = jnp.array([3, 0, 4], jnp.int32)
        rng = np.random.default_rng(0)
        rows = jnp.asarray(rng.standard_normal((10, 8)), dtype)
        w_in = jnp.asarray(rng.standard_normal((3, 8, 12)), dtype)
        w_out = jnp.asarray(rng.standard_normal((3, 6, 8)), dtype)
        cotangent = jnp.ones((10, 8), dtype)
        dirty_rows, dirty_cotangent = (a.at[7:].set(jnp.nan) for a in (rows, cotangent))

        @jax.jit
        def forward_and_backward(rows, cotangent):
            def experts(rows, w_in, w_out):
                inner = model.gated_silu(lax.ragged_dot(rows, w_in, sizes))
                return lax.ragged_dot(inner, w_out, sizes)

            out, backward = jax.vjp(experts, rows, w_in, w_out)
            of_rows, *of_weights = backward(cotangent)
            return out[:7], of_rows[:7], *of_weights

        dirty = forward_and_backward(dirty_rows, dirty_cotangent)
        clean = forward_and_backward(rows.at[7:].set(0), cotangent.at[7:].set(0))
        for got, want in zip(dirty, clean, strict=True):
            np.testing.assert_array_equal(got, want)


class TestChecks:
    def test_a_nan_never_passes(self):
        assert not checks.Check("x", float("nan"), 1.0).passed
        assert checks.Check("x", 0.0, 0.0).passed

    @pytest.mark.parametrize("wrong, error", [(0.0, 0.0), (0.5, 0.125), (np.nan, np.nan)])
    def test_relative_error_finds_any_wrong_shard(self, wrong, error):
        expected = np.arange(-4, 4, dtype=np.float32)
        array = expected.copy()
        array[5] += wrong
        mesh = jax.make_mesh((8,), ("ep",))
        sharded = jax.device_put(array, NamedSharding(mesh, P("ep")))
        np.testing.assert_equal(checks.relative_error(sharded, expected), error)

    @pytest.mark.parametrize("steps, last, passed", [(10, 0.94, True), (10, 0.96, False)])
    @pytest.mark.parametrize("first", [1.0, 4.0])
    def test_short_training_need_not_fall_far(self, steps, last, passed, first):
        losses = [first] * (steps - 1) + [first * last]
        assert checks.check_training(losses).passed == passed

    def test_long_training_must(self):
        assert not checks.check_training([4.0] * 99 + [3.5]).passed
        assert checks.check_training([4.0] + [3.0] * 99).passed


class TestReport:
    def test_curve_falls_with_the_loss(self):
        lines = report.curve([4.0, 3.0, 2.0, 1.0])
        assert lines[0].split() == ["4.00", "│█"]
        assert lines[7].endswith("│███▁")

    @pytest.mark.parametrize("losses", [[1.0], [1.0, 1.0], [float("nan"), 1.0], [5.0] * 1000])
    def test_curve_of_anything(self, losses):
        assert all(len(line) < 80 for line in report.curve(losses))


class TestRun:
    def test_a_wrong_layer_fails(self, monkeypatch, capsys):
        right = model.fabric_layer

        def slightly_wrong(context):
            return lambda *arguments: right(context)(*arguments) * 1.001

        monkeypatch.setattr(model, "fabric_layer", slightly_wrong)
        assert not moe.run(SMALL, moe.Output())
        shown = capsys.readouterr().out
        assert "FAIL: " in shown
        assert "forward: logits" in shown.splitlines()[-1]

    @pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="no matplotlib")
    def test_plot(self, tmp_path):
        path = tmp_path / "loss.png"
        report.write_plot(path, SMALL, [3.0, 2.0, 1.0])
        assert path.read_bytes().startswith(b"\x89PNG")


class TestCommand:
    def run(self, *arguments):
        # A process of its own: the command decides how many devices JAX sees.
        unset = ("XLA_FLAGS", "NPROC", "JAX_PLATFORMS")
        clean = {k: v for k, v in os.environ.items() if k not in unset}
        clean["PYTHONPATH"] = os.pathsep.join(sys.path)
        return subprocess.run(
            [sys.executable, "-m", "jax_fabric.cli.main", *arguments],
            env=clean,
            capture_output=True,
            text=True,
            timeout=500,
        )

    SIZES = (
        *("--ranks=4", "--tokens=8", "--hidden=16", "--experts=6", "--layers=1", "--steps=6"),
        "--quick",
    )

    @pytest.mark.parametrize(
        "processes, flag", [(1, "--dtype=bfloat16"), (2, "--private-tokens=3")]
    )
    def test_demo_moe(self, processes, flag, tmp_path):
        path = tmp_path / "figures.json"
        flags = (f"--processes={processes}", flag, f"--json={path}")
        done = self.run("demo", "moe", *self.SIZES, *flags)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "PASS: all 9 checks; 4 CPU devices of" in done.stdout
        assert "FAIL" not in done.stdout
        figures = json.loads(path.read_text())
        assert figures["passed"]
        assert figures["config"]["processes"] == processes
        assert len(figures["losses"]) == 6
        assert figures["traffic"]["rows_moved"] == figures["traffic"]["rows_needed"]

    @pytest.mark.parametrize(
        "arguments, message",
        [
            ((), "the following arguments are required: command"),
            (("demo", "moe", "--ranks=3", "--processes=2"), "must be a multiple of processes"),
            (("demo", "moe", "--top-k=many"), "invalid int value"),
            (("demo", "moe", "--json=/no/such/folder/x.json"), "there is no folder"),
        ],
    )
    def test_wrong_arguments(self, arguments, message, capsys):
        with pytest.raises(SystemExit) as exit_:
            cli.main(arguments)
        assert exit_.value.code == 2
        assert message in capsys.readouterr().err

    def test_help_names_every_flag(self, capsys):
        with pytest.raises(SystemExit):
            cli.main(["demo", "moe", "--help"])
        shown = capsys.readouterr().out
        for field in ("ranks", "processes", "tokens", "hidden", "experts", "top-k", "json"):
            assert f"--{field}" in shown
