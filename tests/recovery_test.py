"""Processes are killed at any point of a loop of steps, and the others go on without them."""

import os
import random
import threading
import time
from unittest import mock

import jax
import recovery_programs as programs
from absl.testing import absltest, parameterized
from processes_testing import FAST

import jax_fabric as jf
from jax_fabric.bootstrap import LocalBootstrap, membership
from jax_fabric.testing import launch

SEEDS = (1, 2)


class RecoveryTest(parameterized.TestCase):
    @parameterized.parameters(*SEEDS)
    def test_the_others_go_on(self, seed):
        with (
            mock.patch.dict(os.environ, {"XLA_FLAGS": FAST}),
            self.assertRaises(launch.LaunchError) as caught,
        ):
            launch.run(
                programs.survive, seed, processes=4, timeout_s=180, grace_s=120, distributed=False
            )
        results = caught.exception.results
        for victim in (1, 3):
            self.assertEqual(results[victim].exit_code, -9, results[victim].output)
        survivors = [results[0], results[2]]
        for result in survivors:
            self.assertEqual(result.exit_code, 0, result.output)
            found = result.value
            self.assertEqual(found["members"], [(0, 1, 2), (0, 2)])
            for error, victim in zip(found["errors"], (3, 1), strict=True):
                self.assertRegex(error, rf"UNAVAILABLE: moe .*rank {victim}, which is lost")
        for epoch in range(2):
            steps = [result.value["steps"][epoch] for result in survivors]
            # They are a step apart at the most, and all go on with the same one.
            self.assertLen({agreed for _, agreed in steps}, 1)
            for own, agreed in steps:
                self.assertBetween(own - agreed, 0, 1)

    @parameterized.parameters(1, 2)
    def test_survivors_have_launched_more_and_less(self, local_devices):
        with (
            mock.patch.dict(os.environ, {"XLA_FLAGS": FAST}),
            self.assertRaises(launch.LaunchError) as caught,
        ):
            launch.run(
                programs.go_on_apart,
                processes=3,
                local_devices=local_devices,
                timeout_s=180,
                grace_s=90,
                distributed=False,
            )
        results = caught.exception.results
        self.assertEqual(results[programs.VICTIM].exit_code, -9, results[programs.VICTIM].output)
        for survivor in (programs.AHEAD, programs.BEHIND):
            self.assertEqual(results[survivor].exit_code, 0, results[survivor].output)
            found = results[survivor].value
            self.assertEqual(found["step"], 6)
            self.assertLen(found["errors"], 3 if survivor == programs.AHEAD else 1)
            for error in found["errors"]:
                self.assertIn("which is lost", error)

    def test_one_process_has_nobody_to_lose(self):
        with jf.Fabric(jax.make_mesh((2,), ("ep",))) as fabric:
            self.assertEqual(fabric.membership.processes, (0,))
            self.assertTrue(fabric.membership.present.all())
            with self.assertRaisesRegex(RuntimeError, "all ranks live in this process"):
                fabric.recover()
        with self.assertRaisesRegex(RuntimeError, "was closed"):
            fabric.recover()


class AgreementTest(parameterized.TestCase):
    @parameterized.parameters(range(30))
    def test_all_that_go_on_agree(self, seed):
        """Whoever suspects whom, and however late each of them is."""
        rng = random.Random(seed)
        count = rng.randint(2, 6)
        dead = set(rng.sample(range(count), rng.randint(0, count - 1)))
        bootstrap = LocalBootstrap()
        outcomes = {}

        def survivor(process, suspected, delay_s):
            time.sleep(delay_s)
            candidates = set(range(count)) - suspected
            try:
                outcomes[process] = membership.agree(
                    bootstrap, "test", process, candidates, 10 + process, 0.2
                )
            except RuntimeError as error:
                outcomes[process] = error

        threads = []
        for process in set(range(count)) - dead:
            # Some have not noticed all deaths, some believe that living ones are dead.
            suspected = {p for p in range(count) if p != process and rng.random() < 0.3}
            suspected |= {p for p in dead if rng.random() < 0.5}
            delay_s = rng.choice([0, 0, 0.01, 0.3])
            threads.append(threading.Thread(target=survivor, args=(process, suspected, delay_s)))
        for each in threads:
            each.start()
        for each in threads:
            each.join(30)
        agreed = {each for each in outcomes.values() if isinstance(each, membership.Agreement)}
        self.assertLen(outcomes, count - len(dead))
        self.assertLen(agreed, 1)
        (agreement,) = agreed
        self.assertNoCommonElements(agreement.processes, dead)
        self.assertEqual(agreement.step, 10 + min(agreement.processes))
        for process, outcome in outcomes.items():
            if process in agreement.processes:
                self.assertEqual(outcome, agreement)
            else:
                self.assertIn("have gone on without it", str(outcome))


if __name__ == "__main__":
    absltest.main()
