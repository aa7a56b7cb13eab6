"""Signals that come while a program waits in the host API."""

import os
import pathlib
import signal
import subprocess
import sys
import time

from absl.testing import absltest

SOON_S = 10.0  # processes share the machine; the waits' own timeout is 100 s


def run(name):
    """Runs one of the programs, with a deadline; returns how it ended and how long it took."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(pathlib.Path(__file__).with_name("engine_waits_programs.py")), name],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True,
        text=True,
        timeout=90,
    )
    return done, time.monotonic() - begin


class EngineWaitsTest(absltest.TestCase):
    def test_ctrl_c_ends_every_kind_of_wait(self):
        done, _ = run("interrupted")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("end of main", done.stdout)
        seconds = dict(line.split() for line in done.stdout.splitlines() if line[-1].isdigit())
        self.assertEqual(set(seconds), {"expectation", "peers", "transfer"})
        for name, value in seconds.items():
            self.assertLess(float(value), SOON_S, name)

    def test_sigterm_ends_a_wait_in_a_barrier(self):
        done, seconds = run("terminated")
        self.assertEqual(done.returncode, -signal.SIGTERM, done.stderr)
        self.assertEqual(done.stdout, "waits\n")
        self.assertEqual(done.stderr, "")
        self.assertLess(seconds, 4 * SOON_S)


if __name__ == "__main__":
    absltest.main()
