"""Processes are killed at any point of a loop of steps, and the others go on without them."""

import contextlib
import itertools
import os
import random
import threading
import time
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import recovery_programs as programs
from absl.testing import absltest, parameterized
from processes_testing import FAST

import jax_fabric as jf
from jax_fabric.bootstrap import LocalBootstrap, fabric_name, membership
from jax_fabric.fabric import LOSS_BY_SILENCE_S
from jax_fabric.membership import Membership
from jax_fabric.testing import launch

SEEDS = (1, 2)
# A NIC's transport notices a death by silence, after 10 s.
TCP = {"JAX_FABRIC_DOMAIN": "efa", "JAX_FABRIC_EFA_PROVIDER": "tcp"}
# A write fails before anything else is known of the peer.
_DOUBLE = "bazel-bin/csrc/engine/domains/connectx/double/libverbs_double.so"
CONNECTX = {
    "JAX_FABRIC_DOMAIN": "connectx",
    "JAX_FABRIC_CONNECTX_LIBRARY": str(Path(__file__).resolve().parent.parent / _DOUBLE),
}


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

    @parameterized.parameters(
        ("mask", {}),
        ("raise", {}),
        ("mask", TCP),
        ("raise", TCP),
        ("mask", CONNECTX),
        ("raise", CONNECTX),
    )
    def test_run_steps(self, on_peer_loss, transport):
        if transport is CONNECTX:
            library = CONNECTX["JAX_FABRIC_CONNECTX_LIBRARY"]
            self.assertTrue(os.path.isfile(library), f"no {library}: bazel build --config=ci")
        with (
            mock.patch.dict(os.environ, {"XLA_FLAGS": FAST, **transport}),
            self.assertRaises(launch.LaunchError) as caught,
        ):
            launch.run(
                programs.run_steps_without,
                3,
                on_peer_loss,
                processes=4,
                timeout_s=180,
                grace_s=120,
                distributed=False,
            )
        results = caught.exception.results
        if on_peer_loss == "raise":
            for survivor in (0, 1, 2):
                self.assertEqual(results[survivor].exit_code, 0, results[survivor].output)
                found = results[survivor].value
                words = "rank 3, which is lost"
                if transport is CONNECTX:
                    words += "|cannot send to rank 3"
                self.assertRegex(found["error"], words)
                self.assertEqual(found["epoch"], 0)
            return
        for survivor in (0, 2):
            self.assertEqual(results[survivor].exit_code, 0, results[survivor].output)
            found = results[survivor].value
            self.assertEqual(found["error"], "")
            self.assertEqual(found["epoch"], 2)
            self.assertEqual(found["state"], sum(range(programs.STEPS)))
            numbers = [number for number, _ in found["seen"]]
            # Each once, but for one that had to be done again in each epoch at most.
            self.assertEqual(sorted(set(numbers)), list(range(programs.STEPS)))
            self.assertLessEqual(len(numbers), programs.STEPS + 2)

    @parameterized.named_parameters(
        ("end", {"end": -1}, "end=-1"),
        ("end_before_first", {"first": 3, "end": 2}, "end=2"),
        ("policy", {"end": 1, "on_peer_loss": "ignore"}, "on_peer_loss='ignore'"),
    )
    def test_run_steps_refuses(self, arguments, message):
        with (
            jf.Fabric(jax.make_mesh((1,), ("ep",))) as fabric,
            self.assertRaisesRegex(ValueError, message),
        ):
            jf.run_steps(fabric, lambda number, state, membership: state, 0, **arguments)

    @parameterized.parameters((2, 0, "step 2 and this one at 5"), (4, 5, "first=5"))
    def test_run_steps_with_processes_far_apart(self, agreed, first, message):
        """The others stand in for processes that do not exchange anything in their steps."""
        fabric = mock.create_autospec(jf.Fabric, instance=True)
        fabric.wait_for_loss.return_value = True
        fabric.recover.return_value = Membership(1, (0, 2), np.array([True, False, True]), agreed)

        def step(number, state, membership):
            if number == 5:
                raise ValueError("UNAVAILABLE: moe dispatch (channel 0, call 9): rank 1 is lost")
            return state + number

        with self.assertRaisesRegex(RuntimeError, message):
            jf.run_steps(fabric, step, 0, first=first, end=9, on_peer_loss="mask")
        fabric.recover.assert_called_once_with(step=5)
        fabric.wait_for_loss.assert_called_once_with(LOSS_BY_SILENCE_S)

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

    @parameterized.parameters(
        (1, 1, ("running",)), (2, 2, ("running",)), (3, 1, ("running", "member", "running"))
    )
    def test_a_process_comes_back(self, seed, local_devices, deaths):
        with mock.patch.dict(os.environ, {"XLA_FLAGS": FAST}):
            results = launch.run(
                programs.come_back,
                seed,
                deaths,
                processes=3,
                local_devices=local_devices,
                timeout_s=240,
                grace_s=60,
                distributed=False,
            )
        everybody, without = (0, 1, 2), (0, 2)
        for process in without:
            found = results[process].value
            # It may take longer to start than the others wait for it: then they try again.
            changes = [members for members, _ in itertools.groupby(found["members"])]
            self.assertEqual(changes, [everybody, without] * deaths.count("running") + [everybody])
            self.assertLen(found["errors"], deaths.count("running"))
            for error in found["errors"]:
                self.assertRegex(error, "rank.* which is lost")
        found = results[programs.RETURNING].value
        self.assertEqual(found["members"], [everybody])
        self.assertEqual(found["first_step"], 2 * programs.STEPS_OF_EACH)

    def test_a_process_that_was_taken_for_dead(self):
        with mock.patch.dict(os.environ, {"XLA_FLAGS": FAST}):
            _, left_out = launch.run(
                programs.be_left_out, processes=2, timeout_s=120, grace_s=30, distributed=False
            )
        self.assertRegex(
            left_out.value,
            r"taken for dead: processes \[0\] have gone on .*start it anew.*\n"
            r"rejoin=True: this process has made expert-parallel contexts or watchers before: ",
        )

    def test_one_process_has_nobody_to_lose(self):
        with jf.Fabric(jax.make_mesh((2,), ("ep",))) as fabric:
            self.assertEqual(fabric.membership.processes, (0,))
            self.assertTrue(fabric.membership.present.all())
            with self.assertRaisesRegex(RuntimeError, "all ranks live in this process"):
                fabric.recover()
        with self.assertRaisesRegex(RuntimeError, "was closed"):
            fabric.recover()
        with self.assertRaisesRegex(ValueError, "rejoin=True: all ranks live in this process"):
            jf.Fabric(jax.make_mesh((2,), ("ep",)), rejoin=True)


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


class WaitingBootstrap(LocalBootstrap):
    """For threads that wait for each other."""

    def fetch(self, key, timeout_s):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                return super().fetch(key, 0)
            time.sleep(0.001)
        return super().fetch(key, 0)


class RejoinTest(parameterized.TestCase):
    def test_nobody_takes_it_back(self):
        with self.assertRaisesRegex(TimeoutError, r"they call recover\(rejoin=\[3\]\)"):
            membership.rejoin(WaitingBootstrap(), "epoch", 3, 0.1)

    def test_epochs_without_it_pass_by(self):
        """Those before it came, and one in which the others want a life back that is over, too."""
        bootstrap = WaitingBootstrap()
        for epoch, rejoin in ((1, ()), (2, (1,))):
            if rejoin:
                bootstrap.publish_first(f"epoch/{epoch}/back/1", b"a life that is over")
            agreed = membership.agree(
                bootstrap, f"epoch/{epoch}", 0, {0}, 7, 0.2, rejoin=rejoin, contexts=4
            )
            self.assertEqual(agreed.processes, (0, *rejoin))
        outcome = []
        newcomer = threading.Thread(
            target=lambda: outcome.append(membership.rejoin(bootstrap, "epoch", 1, 10))
        )
        newcomer.start()
        agreed = membership.agree(bootstrap, "epoch/3", 0, {0}, 9, 10, rejoin={1}, contexts=4)
        newcomer.join(20)
        self.assertEqual(agreed, membership.Agreement((0, 1), 9, 4))
        self.assertEqual(outcome, [(3, agreed)])

    def test_who_does_not_come_stays_out(self):
        agreed = membership.agree(WaitingBootstrap(), "epoch/1", 0, {0}, 7, 0.1, rejoin={1, 2})
        self.assertEqual(agreed, membership.Agreement((0,), 7))


class FabricNameTest(parameterized.TestCase):
    def test_latest_is_that_of_the_others(self):
        mesh = jax.make_mesh((3,), ("ep",), devices=jax.devices()[:3])
        bootstrap = LocalBootstrap()
        with self.assertRaisesRegex(TimeoutError, "secret"):
            fabric_name.latest(mesh, bootstrap, 0.1)
        # In the others, which made two more than this process.
        own = fabric_name.following(mesh)
        prefix, number = own.rsplit("/", 1)
        for each in range(int(number) + 3):
            bootstrap.publish(fabric_name.secret_key(f"{prefix}/{each}"), b"")
        self.assertEqual(fabric_name.latest(mesh, bootstrap, 1), f"{prefix}/{int(number) + 2}")
        self.assertEqual(fabric_name.following(mesh), f"{prefix}/{int(number) + 3}")


if __name__ == "__main__":
    absltest.main()
