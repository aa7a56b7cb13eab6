"""Several hosts for real: each in a network namespace, over TCP, with jax.distributed across."""

import concurrent.futures
import os
import tempfile
import time
from pathlib import Path
from unittest import mock

import bootstrap_programs
import netns_programs as programs
import netns_testing
import processes_testing
from absl.testing import absltest, parameterized

from jax_fabric.testing import launch

PORT = 7654


@absltest.skipIf(netns_testing.missing(), netns_testing.missing())
class HostsTest(parameterized.TestCase):
    def hosts(self, count, **options):
        return self.enter_context(netns_testing.Hosts(count, **options))

    def run_on(self, hosts, target, *arguments, nics="eth0", timeout_s=240, **options):
        environment = {
            "JAX_FABRIC_DOMAIN": "efa",
            "JAX_FABRIC_EFA_PROVIDER": "tcp",
            "JAX_FABRIC_NICS": nics,
            # Hosts share this machine's few cores.
            "JAX_FABRIC_IDLE": "sleep",
        }
        with mock.patch.dict(os.environ, {"XLA_FLAGS": processes_testing.FAST}):
            return launch.run(
                target,
                *arguments,
                processes=len(hosts.prefixes),
                prefixes=hosts.prefixes,
                coordinator=f"{hosts.address(0)}:{PORT}",
                environment=environment,
                timeout_s=timeout_s,
                **options,
            )

    @parameterized.parameters(2, 4)
    def test_exchanges_agree_with_the_oracle(self, count):
        hosts = self.hosts(count)
        results = self.run_on(hosts, programs.exchange, processes_testing.expected(count))
        for result in results:
            self.assertEqual(result.value.pop("host"), f"host{result.rank}")
            for check, error in result.value.items():
                self.assertEqual(error, "", f"host {result.rank}: {check}")

    def test_two_nics_a_host(self):
        """NIC i talks to NIC i: they are on networks of their own."""
        hosts = self.hosts(2, links=2)
        want = processes_testing.expected(2)
        results = self.run_on(hosts, programs.one_exchange, want, nics="eth0,eth1")
        self.assertEqual([result.value for result in results], ["host0", "host1"])

    def test_a_link_is_cut_and_restored(self):
        hosts = self.hosts(3)
        folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        with concurrent.futures.ThreadPoolExecutor() as threads:
            running = threads.submit(
                self.run_on, hosts, programs.survive_a_cut, str(folder), distributed=False
            )
            self.wait_for(running, folder, "running")
            hosts.set_link(2, "down")
            self.wait_for(running, folder, "failed")
            hosts.set_link(2, "up")
            (folder / "restored").touch()
            results = running.result()
        for result in results:
            lost = "2" if result.rank < 2 else "[01]"
            self.assertRegex(result.value["error"], f"waits for rank {lost}, which is lost")
            self.assertLess(result.value["seconds"], programs.TIMEOUT_S)
            self.assertEqual(result.value["afterwards"], "right")

    @parameterized.parameters("addresses", "slurm")
    def test_the_example(self, how):
        """As SLURM starts it, by what SLURM says, and as Kubernetes and Ray do."""
        hosts = self.hosts(2)
        prefixes = list(hosts.prefixes)
        if how == "slurm":
            job = dict(SLURM_JOB_ID=77, SLURM_STEP_NODELIST="host[0-1]", SLURM_NTASKS=2)
            hosts.prefixes = [
                [
                    *prefix,
                    "env",
                    *(f"{name}={value}" for name, value in job.items()),
                    *(f"SLURM_PROCID={number}", "SLURM_LOCALID=0"),
                ]
                for number, prefix in enumerate(prefixes)
            ]
        script = Path(__file__).parent.parent / "examples" / "multi_host" / "moe.py"
        for result in self.run_on(hosts, script, distributed=False):
            self.assertIn(f"process {result.rank} of 2: rows are back", result.output)

    def test_a_board_at_an_address(self):
        hosts = self.hosts(2)
        board = f"{hosts.address(0)}:{PORT + 1}"
        self.run_on(hosts, bootstrap_programs.exchange, "address", board)

    def test_no_way_through_memory(self):
        """Groups of domain local on two hosts do not reach each other, and say so in time."""
        hosts = self.hosts(2)
        folder = self.enter_context(tempfile.TemporaryDirectory())
        results = self.run_on(hosts, programs.through_memory, folder, distributed=False)
        for result in results:
            self.assertIn(f"'host{1 - result.rank}'", result.value)
            self.assertIn("runs on another machine or in another container", result.value)

    def wait_for(self, running, folder, name):
        deadline = time.monotonic() + 180
        wanted = [folder / f"{name}{process}" for process in range(3)]
        while not all(path.exists() for path in wanted):
            if running.done():
                running.result()  # raises what went wrong
            self.assertLess(time.monotonic(), deadline, f"not all are {name}")
            time.sleep(0.1)


class SkippedTest(absltest.TestCase):
    def test_a_reason_is_given(self):
        netns_testing.missing.cache_clear()
        self.addCleanup(netns_testing.missing.cache_clear)
        with mock.patch.object(netns_testing.shutil, "which", return_value=None):
            self.assertIn("there is no ip", netns_testing.missing())
        netns_testing.missing.cache_clear()
        with mock.patch.dict(os.environ, {"PATH": "/no/such/folder"}):
            self.assertIn("there is no ip", netns_testing.missing())


if __name__ == "__main__":
    absltest.main()
