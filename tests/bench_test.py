"""Benchmarks: rows that are valid, peers that agree, and the command."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jax_fabric import Fabric
from jax_fabric.bench import exchange, rows
from jax_fabric.bench.config import MoeBenchConfig
from jax_fabric.bench.interleave import Contender, interleave
from jax_fabric.bench.memcpy import Memcpy
from jax_fabric.cli import main as cli

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALL = MoeBenchConfig(ranks=4, tokens=6, hidden=16, experts=6, top_k=3, dtype="float32")


class TestConfig:
    @pytest.mark.parametrize(
        "change, message",
        [
            ({"repetitions": 0}, "repetitions is 0"),
            ({"processes": 3}, r"ranks \(8\) must be a multiple of processes \(3\)"),
            ({"top_k": 65}, r"top_k \(65\) is more than experts \(64\)"),
            ({"peers": ("gloo",)}, "does not run in 1 process"),
            ({"processes": 2, "peers": ("plain_jax",)}, "there: gloo, mpi4jax"),
            ({"processes": 2, "peers": ("mpi4jax",)}, "one rank in each process"),
        ],
    )
    def test_errors_name_the_value(self, change, message):
        with pytest.raises(ValueError, match=message):
            MoeBenchConfig(**change)


class TestRows:
    def test_ratio_is_of_each_round(self):
        ours, theirs = [1.0, 10.0, 2.0], [3.0, 30.0, 2.0]
        ratios = np.array(theirs) / np.array(ours)
        got = rows.row("b", "c", "m", "ms", ours, peer="p", ratios=ratios)
        assert (got.median, got.min, got.max, got.n, got.ratio) == (2.0, 1.0, 10.0, 3, 3.0)

    def test_json_and_back(self, tmp_path):
        written = [
            rows.row("b", "c", "m", "ms", [1.0, 2.0], peer="p", ratios=[2.0]),
            rows.row("b", "c", "m" + rows.OF_THE_PEER, "ms", [4.0, 5.0], peer="p"),
        ]
        path = tmp_path / "rows.json"
        rows.write_json(path, written)
        assert rows.read_json(path) == written
        (line,) = rows.markdown(written).splitlines()[4:]
        assert line == "| m | 1.50 [1.00, 2.00] | ms | p | 4.50 [4.00, 5.00] | 2 | 2 |"


class TestInterleave:
    def test_each_contender_in_turn_with_other_calls(self):
        calls = []
        contenders = [Contender(n, lambda i, n=n: calls.append((n, i))) for n in "ab"]
        rounds = []
        times = interleave(contenders, 2, lambda: rounds.append(len(calls)))
        assert calls == [("a", 0), ("a", 1), ("b", 0), ("b", 1)] + [
            ("a", 2), ("a", 3), ("b", 2), ("b", 3)
        ]  # fmt: skip
        assert rounds == [4, 8]
        assert set(times) == {"a", "b"} and all((t > 0).all() for t in times.values())

    @pytest.mark.parametrize("size", [1, 1000, 1_000_000])
    def test_memcpy_of_any_size(self, size):
        memcpy = Memcpy(size, 1)
        memcpy.in_cache(0)
        memcpy.beyond_cache(0)
        memcpy.close()


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4,), (exchange.AXIS,), devices=jax.devices()[:4])


class TestPeers:
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    def test_all_agree(self, mesh, dtype):
        config = dataclasses.replace(SMALL, dtype=dtype)
        operands = exchange.make_operands(config, mesh, 2)
        with Fabric(mesh) as fabric:
            context = exchange.expert_parallel(config, fabric)
            program = exchange.over_ranks(mesh, exchange.round_trip(context))
            ours = exchange.contender(exchange.OURS, program, operands)
            exchange.check(config, ours, exchange.peers(config, mesh, operands))
            wrong = Contender("wrong", lambda i: ours.call(i) * 1.1)
            with pytest.raises(exchange.WrongResult, match="jax_fabric and wrong differ by 0.09"):
                exchange.check(config, ours, [wrong])

    def test_every_call_has_another_routing(self, mesh):
        experts = exchange.make_operands(SMALL, mesh, 4).experts
        assert len({experts[i].tobytes() for i in range(4)}) == 4

    def test_lower_bound_counts_a_rank_once(self):
        experts = np.array([[[0, 1, 2]], [[0, 2, 4]], [[5, 4, 1]], [[0, 1, -1]]])
        # Ranks of experts: 0 0 1, 0 1 2, 2 2 0, 0 0 and nowhere.
        assert exchange.rows_needed(SMALL, experts) == 2 + 3 + 2 + 1


class TestCommand:
    def run(self, *arguments):
        # A process of its own: the command decides how many devices JAX sees.
        unset = ("XLA_FLAGS", "NPROC", "JAX_PLATFORMS")
        clean = {k: v for k, v in os.environ.items() if k not in unset}
        clean["PYTHONPATH"] = os.pathsep.join(sys.path)
        return subprocess.run(
            [sys.executable, "-m", "jax_fabric.cli.main", "bench", "moe", *arguments],
            env=clean,
            capture_output=True,
            text=True,
            timeout=500,
        )

    SIZES = ("--quick", "--tokens=8", "--hidden=64", "--experts=16", "--top-k=4")

    @pytest.mark.parametrize(
        "flags, peers",
        [
            (("--ranks=4",), {"plain_jax", "plain_jax_lean"}),
            (("--processes=2", "--peer=gloo"), {"gloo", "gloo_lean"}),
        ],
    )
    def test_rows_are_valid(self, flags, peers, tmp_path):
        path = tmp_path / "rows.json"
        done = self.run(*self.SIZES, *flags, f"--json={path}")
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(path.read_text())
        fields = [field.name for field in dataclasses.fields(rows.Row)]
        assert all(list(each) == fields for each in found)
        assert {each["bench"] for each in found} == {"moe"}
        timed = {each["peer"]: each for each in found if each["metric"] == "dispatch + combine"}
        assert set(timed) == peers | {"memcpy in cache", "memcpy beyond cache"}
        for each in timed.values():
            assert each["unit"] == "ms" and each["n"] == 5 and each["ratio"] > 0
            assert 0 < each["min"] <= each["median"] <= each["max"]
        (moved,) = (each for each in found if each["peer"] == "lower bound")
        assert moved["ratio"] == 1.0
        (overhead,) = (each for each in found if each["peer"] == "empty program" and each["ratio"])
        assert overhead["unit"] == "us"
        empty = [each for each in found if each["peer"] == "empty FFI call" and each["ratio"]]
        assert len(empty) == (2 if "plain_jax" in peers else 0)

    def test_a_peer_without_environment(self, tmp_path):
        flags = ("--processes=2", "--peer=mpi4jax", f"--environments={tmp_path}")
        done = self.run(*self.SIZES, *flags)
        assert done.returncode == 1
        assert "benchmarks/peers/setup mpi4jax" in done.stdout

    @pytest.mark.parametrize(
        "arguments, message",
        [
            ((), "the following arguments are required: benchmark"),
            (("moe", "--peer=tin_cans"), "invalid choice"),
            (("moe", "--peer=gloo"), "does not run in 1 process"),
            (("moe", "--processes=2", "--ranks=3"), "must be a multiple of processes"),
            (("moe", "--json=/no/such/folder/x.json"), "there is no folder"),
        ],
    )
    def test_wrong_arguments(self, arguments, message, capsys):
        with pytest.raises(SystemExit) as exit_:
            cli.main(["bench", *arguments])
        assert exit_.value.code == 2
        assert message in capsys.readouterr().err


class TestHelp:
    @pytest.mark.parametrize(
        "arguments", ["", "demo", "demo moe", "bench", "bench moe", "bench transfer", "simulate"]
    )
    def test_of_commands_is_plain_text(self, arguments, capsys):
        with pytest.raises(SystemExit) as exit_:
            cli.main([*arguments.split(), "--help"])
        assert exit_.value.code == 0
        shown = capsys.readouterr().out
        assert shown.startswith("usage: jax-fabric")
        assert "`" not in shown

    @pytest.mark.parametrize("arguments", ["demo moe", "bench moe", "bench transfer"])
    def test_has_examples_that_are_understood(self, arguments, capsys, monkeypatch):
        with pytest.raises(SystemExit):
            cli.main([*arguments.split(), "--help"])
        lines = capsys.readouterr().out.split("examples:\n")[1].splitlines()
        assert len(lines) >= 3
        for line in lines:
            command = line.strip().split("  ")[0].split()
            assert command[:3] == ["jax-fabric", *arguments.split()]
            ran = []
            for module in ("bench", "demo"):
                monkeypatch.setattr(
                    f"jax_fabric.cli.{module}._run_{command[2]}",
                    lambda _, parsed, ran=ran: ran.append(parsed) or 0,
                    raising=False,
                )
            assert cli.main(command[1:]) == 0
            assert len(ran) == 1

    @pytest.mark.parametrize("script", ["record", "peers/setup"])
    def test_of_scripts(self, script):
        command = [BENCHMARKS / script, "--help"]
        if script == "record":
            command.insert(0, sys.executable)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        if script == "record":
            for flag in ("--bench", "--on", "--date", "--repetitions", "--processes"):
                assert f"\n  {flag} " in done.stdout
            assert done.stdout.count("(default: ") == 5
        else:
            assert "setup nixl" in done.stdout

    def test_a_peer_that_nobody_knows(self):
        command = [BENCHMARKS / "peers" / "setup", "tin_cans"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (2, "")
        assert "setup nixl" in done.stderr


def test_results_are_rows_without_names_of_machines():
    for path in (BENCHMARKS / "results").glob("*.json"):
        assert rows.read_json(path)
