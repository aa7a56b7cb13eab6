"""The model of MoE exchanges: its constants, the paper's table, and the command."""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
from absl.testing import absltest, parameterized

from jax_fabric import errors
from jax_fabric.bench import rows
from jax_fabric.cli import main as cli
from jax_fabric.simulate import fit, model, moe
from jax_fabric.simulate.config import MoeSimulationConfig
from jax_fabric.simulate.constants import CHECKED_RANKS, FITTED_RANKS, NICS, PAPER_DECODE_US


class FitTest(parameterized.TestCase):
    @parameterized.parameters(*NICS)
    def test_the_fit_ends_at_the_constants(self, name):
        nic = NICS[name]
        found = fit.fit(nic, steps=1)
        self.assertAlmostEqual(found.bytes_per_ns, nic.bytes_per_ns, delta=0.5)
        self.assertAlmostEqual(found.latency_us, nic.latency_us, delta=1.0)

    @parameterized.parameters(*NICS)
    def test_others_fit_worse(self, name):
        nic = NICS[name]
        best = (fit.errors(nic) ** 2).sum()
        (least_us, _), (_, most) = fit.BOUNDS
        for change in (
            dict(latency_us=nic.latency_us + 4),
            dict(latency_us=nic.latency_us - 4),
            dict(bytes_per_ns=nic.bytes_per_ns - 3),
            dict(bytes_per_ns=nic.bytes_per_ns + 3),
        ):
            if (
                change.get("latency_us", least_us) < least_us
                or change.get("bytes_per_ns", 0) > most
            ):
                continue
            self.assertGreater((fit.errors(dataclasses.replace(nic, **change)) ** 2).sum(), best)

    @parameterized.parameters(*NICS)
    def test_what_the_fit_has_not_seen_is_within_a_quarter(self, name):
        off = fit.errors(NICS[name], CHECKED_RANKS)
        self.assertLen(off, 2)
        self.assertLess(np.abs(off).max(), 0.25)

    def test_the_checked_figures_are_no_fitted_ones(self):
        self.assertEmpty(set(FITTED_RANKS) & set(CHECKED_RANKS))
        for figures in PAPER_DECODE_US.values():
            self.assertEqual(set(figures), {*FITTED_RANKS, *CHECKED_RANKS})


class ModelTest(parameterized.TestCase):
    def test_few_ranks_stand_for_many(self):
        config = MoeSimulationConfig(ranks=(320,), tokens=16, calls=1)
        times = model.run(config, "rounds", NICS["efa"], 320)
        self.assertLen(times.dispatch_us, times.representatives)
        self.assertLess(times.representatives, 320)
        self.assertEqual(times.writes, 2 * 319)
        self.assertFalse(model.runs("channel", 320))

    def test_fewer_bytes_than_two_phases(self):
        # A token goes to a rank once, and comes back once, however many of its experts live there.
        config = MoeSimulationConfig(ranks=(16,), calls=1)
        ours = model.run(config, "channel", NICS["connectx7"], 16)
        theirs = model.run(config, "two_phases", NICS["connectx7"], 16)
        self.assertLess(ours.wire_bytes, 0.9 * theirs.wire_bytes)
        self.assertLess(ours.p50_us[1], theirs.p50_us[1])

    def test_kernels_take_longer_for_more_tokens_and_never_less_for_fewer(self):
        kernels = NICS["connectx7"].kernels
        self.assertEqual(kernels.for_tokens(1), kernels)
        self.assertEqual(kernels.for_tokens(128), kernels)
        self.assertAlmostEqual(kernels.for_tokens(256).combine_receive_us, 15.0 + 2.9)

    def test_what_cannot_be_is_named(self):
        config = MoeSimulationConfig(ranks=(16,))
        with self.assertRaisesRegex(errors.InvalidArgument, "bytes_per_ns"):
            model.run(config, "rounds", dataclasses.replace(NICS["efa"], bytes_per_ns=0.0), 16)

    @parameterized.parameters(
        (dict(nics=("infiniband",)), "there are connectx7, efa"),
        (dict(ranks=(8,)), "ranks 8: must be more than node_ranks"),
        (dict(top_k=300), r"top_k \(300\) is more than experts \(256\)"),
        (dict(tokens=0), "tokens is 0"),
    )
    def test_errors_name_the_value(self, change, message):
        with self.assertRaisesRegex(ValueError, message):
            MoeSimulationConfig(**change)


class CommandTest(absltest.TestCase):
    def test_rows_of_a_small_run(self):
        path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "rows.json"
        command = ["simulate", "moe", "--nic", "efa", "--ranks", "16", "--calls", "1"]
        self.assertEqual(cli.main([*command, "--sweep", "16", "--json", str(path)]), 0)
        written = rows.read_json(path)
        by_metric = {(each.metric, each.peer): each for each in written}
        for call, paper in zip(moe.CALLS, PAPER_DECODE_US["efa"][16], strict=True):
            ours = by_metric[f"{call} (model of two phases)", moe.PEER_PAPER]
            theirs = by_metric[f"{call} (model of two phases){rows.OF_THE_PEER}", moe.PEER_PAPER]
            self.assertEqual(theirs.median, paper)
            self.assertAlmostEqual(ours.ratio, paper / ours.median, delta=1e-3)
            self.assertIn((f"{call} (model of jax_fabric)", moe.PEER_TWO_PHASES), by_metric)
        swept = [each for each in written if ", P " in each.metric]
        self.assertLen(swept, len(moe.SWEPT_PRIVATE_TOKENS))

    def test_a_folder_that_is_not_there(self):
        with self.assertRaises(SystemExit):
            cli.main(["simulate", "moe", "--json", "/nowhere/rows.json"])


if __name__ == "__main__":
    absltest.main()
