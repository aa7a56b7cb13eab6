"""Ways for a program to end, or to leave a fabric: none hangs, none hides an error."""

import ast
import functools
import os
import pathlib
import subprocess
import sys
import time
from unittest import mock

import exit_programs as programs
from absl.testing import absltest, parameterized
from processes_testing import FAST

from jax_fabric.testing import launch

SOON_S = 20.0  # processes share the machine; the fabrics' own timeout is 100 s


def run(name):
    """Runs one of the programs, with a deadline; returns how it ended."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), XLA_FLAGS=FAST)
    return subprocess.run(
        [sys.executable, str(pathlib.Path(__file__).with_name("exit_programs.py")), name],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


class OneProcessTest(parameterized.TestCase):
    @parameterized.parameters("without_close", "fork")
    def test_ends_well(self, name):
        done = run(name)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_exception_inside(self):
        done = run("exception_inside")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stderr.strip().splitlines()[-1], "KeyError: 'of the user'")
        self.assertNotIn("During handling", done.stderr)

    def test_fabrics_leave_nothing_behind(self):
        done = run("many_fabrics")
        self.assertEqual(done.returncode, 0, done.stderr)
        growth = ast.literal_eval(done.stdout)
        for name in ("threads", "files", "maps"):
            self.assertLessEqual(growth[name], 0, growth)
        # 30 fabrics had 4 x 16 MiB and more each.
        self.assertLess(growth["resident"], 200, growth)
        self.assertLess(growth["size"], 400, growth)


class TwoProcessesTest(absltest.TestCase):
    @staticmethod
    @functools.cache
    def found():
        with mock.patch.dict(os.environ, {"XLA_FLAGS": FAST}):
            results = launch.run(programs.leaving, processes=2, timeout_s=150)
        return *(result.value for result in results), time.monotonic()

    def test_ctrl_c_ends_the_wait_for_an_absent_rank(self):
        first, _, _ = self.found()
        self.assertLess(first["interrupted"], SOON_S)
        self.assertLess(first["interrupted_opening"], SOON_S)

    def test_close_does_not_hide_an_error(self):
        first, _, _ = self.found()
        self.assertEqual(first["error"], "'of the user'")
        self.assertEqual(first["context"], "None")
        self.assertLess(first["error_seconds"], SOON_S)

    def test_a_rank_that_has_left_is_named(self):
        _, second, _ = self.found()
        self.assertRegex(
            second["left"], r"UNAVAILABLE: moe.*: rank 1 waits for rank 0, which is lost"
        )
        self.assertLess(second["left_seconds"], SOON_S)

    def test_the_program_ends_while_an_exchange_waits(self):
        first, second, end = self.found()
        self.assertLess(end - min(first["end"], second["end"]), SOON_S)

    def test_sigterm_ends_a_wait(self):
        with (
            mock.patch.dict(os.environ, {"XLA_FLAGS": FAST}),
            self.assertRaises(launch.LaunchError) as caught,
        ):
            launch.run(
                programs.terminated, processes=2, timeout_s=120, grace_s=60, distributed=False
            )
        other, victim = caught.exception.results
        self.assertEqual(victim.exit_code, -15, victim.output)
        self.assertEqual(other.exit_code, 0, other.output)
        self.assertLess(other.value, SOON_S)


if __name__ == "__main__":
    absltest.main()
