"""NICs and cores of groups: what was asked for, and what is nearest on machines of fixtures."""

import os
import tempfile
import types
from pathlib import Path
from unittest import mock

import engine_testing
import jax
import numpy as np
import sysfs_testing as fixtures
from absl.testing import absltest, parameterized

import jax_fabric as jf
from jax_fabric import engine, errors
from jax_fabric.places import choose_places
from jax_fabric.topology import Machine

HGX_OF_GPU = {gpu: (f"mlx5_{(gpu + 3) % 8}",) for gpu in range(8)}


def cores_of_threads(name: str) -> list[set[int]]:
    """Of this process's threads whose names begin so."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().startswith(name):
            found.append(os.sched_getaffinity(int(task.name)))
    return found


class CoresTest(parameterized.TestCase):
    def test_a_worker_and_what_it_starts_stay_on_the_cores(self):
        before = os.sched_getaffinity(0)
        core = max(before)
        with engine.TransferEngine(worker_threads=1) as transfers:
            transfers.add_group(cpus=[core])
            self.assertEqual(cores_of_threads("jf-worker"), [{core}])
        self.assertEqual(os.sched_getaffinity(0), before)

    def test_of_a_fabric(self):
        core = min(os.sched_getaffinity(0))
        with jf.Fabric(jax.make_mesh((1,), ("ep",)), worker_threads=1, cpus=[core]):
            for name in ("jf-worker", "jf_kernels", "jf_completion"):
                self.assertEqual(cores_of_threads(name), [{core}], name)

    def test_anywhere_by_default(self):
        with engine.TransferEngine(worker_threads=1) as transfers:
            transfers.add_group()
            self.assertEqual(cores_of_threads("jf-worker"), [os.sched_getaffinity(0)])

    @parameterized.parameters([[1023]], [[4096]], [[-1]], [["0"]])
    def test_cores_that_are_not_there(self, cpus):
        with (
            engine.TransferEngine() as transfers,
            self.assertRaisesRegex(errors.InvalidArgument, "cpus"),
        ):
            transfers.add_group(cpus=cpus)
        with self.assertRaisesRegex(errors.InvalidArgument, "cpus"):
            jf.Fabric(jax.make_mesh((1,), ("ep",)), cpus=cpus)


class NicsOfGroupsTest(parameterized.TestCase):
    def test_a_nic_by_name(self):
        environment = {
            "JAX_FABRIC_DOMAIN": "efa",
            "JAX_FABRIC_EFA_PROVIDER": "tcp",
            "JAX_FABRIC_NICS": "lo",
        }
        with mock.patch.dict(os.environ, environment), engine_testing.Pair() as pair:
            rows = np.arange(1 << 20, dtype=np.uint32).view(np.uint8)
            source, target = pair.source(rows), pair.target(rows.nbytes)
            pair.a.write(pair.to_b, source, target.descriptor).wait()
            np.testing.assert_array_equal(target.array, rows)

    def test_a_nic_that_is_not_there(self):
        with (
            engine.TransferEngine() as transfers,
            self.assertRaisesRegex(errors.FabricError, "no NIC 'no_such_nic'.*Found: .*lo"),
        ):
            transfers.add_group(domain="efa", provider="tcp", nics=["no_such_nic"])

    @parameterized.parameters(
        (dict(nics=["a"]), r"nics=\['a'\]: domain='local' has none"),
        (dict(domain="efa", nics="eth0"), r"give a list of names, as \['eth0'\]"),
        (dict(domain="efa", nics=["a", "a"]), "name each NIC once"),
        (dict(domain="efa", nics=list("abcde")), "names of 1 to 4 NICs"),
    )
    def test_bad_arguments(self, options, message):
        with (
            engine.TransferEngine() as transfers,
            self.assertRaisesRegex(errors.InvalidArgument, message),
        ):
            transfers.add_group(**options)
        with self.assertRaisesRegex(ValueError, message):
            jf.Fabric(jax.make_mesh((1,), ("ep",)), **options)

    @parameterized.parameters("a,a", "a;", "", "^")
    def test_bad_environment(self, value):
        with (
            mock.patch.dict(os.environ, {"JAX_FABRIC_NICS": value}),
            self.assertRaisesRegex(errors.InvalidArgument, "JAX_FABRIC_NICS.*give names of 1 to 4"),
        ):
            engine.TransferEngine()


class ChoiceTest(parameterized.TestCase):
    def machine(self, make, *arguments, **options) -> Machine:
        folder = self.enter_context(tempfile.TemporaryDirectory())
        return Machine.read(make(folder, *arguments, **options).root)

    def choose(self, machine, devices, domain="connectx", mesh=None, environment=None, **options):
        options = dict(provider=None, nics=None, cpus=None) | options
        mesh = mesh or jax.make_mesh((len(devices),), ("ep",))
        with mock.patch.dict(os.environ, environment or {}):
            return choose_places(mesh, devices, domain, **options, machine=machine)

    def gpus(self, count):
        return [
            types.SimpleNamespace(platform="gpu", id=i, local_hardware_id=i) for i in range(count)
        ]

    def test_gpus_get_the_nearest(self):
        machine = self.machine(fixtures.hgx_connectx)
        cores = set(machine.numa_nodes[0].cpus) & os.sched_getaffinity(0)
        places = self.choose(machine, self.gpus(8))
        self.assertEqual([nics for nics, _ in places], list(HGX_OF_GPU.values()))
        self.assertEqual(set(places[0][1]), cores)
        efa = self.choose(self.machine(fixtures.p5), self.gpus(8), domain="efa")
        self.assertLen(set().union(*(nics for nics, _ in efa)), 32)

    def test_gpus_that_are_seen(self):
        machine = self.machine(fixtures.hgx_connectx)
        places = self.choose(machine, self.gpus(2), environment={"CUDA_VISIBLE_DEVICES": "6,5"})
        self.assertEqual([nics for nics, _ in places], [HGX_OF_GPU[6], HGX_OF_GPU[5]])

    def test_parts_of_gpus_need_no_nic_on_one_machine(self):
        machine = self.machine(fixtures.hgx_connectx)
        environment = {"CUDA_VISIBLE_DEVICES": "MIG-GPU-00000000/1/0"}
        places = self.choose(machine, self.gpus(1), domain="local", environment=environment)
        self.assertEqual(places, [((), ())])
        with self.assertRaisesRegex(errors.InvalidArgument, "a part of a GPU"):
            self.choose(machine, self.gpus(1), environment=environment)

    def test_cpu_devices_take_turns_over_all_processes(self):
        machine = self.machine(fixtures.hgx_connectx)
        devices = jax.devices()[4:8]
        places = self.choose(machine, devices, mesh=jax.make_mesh((8,), ("ep",)))
        self.assertLen({nics for nics, _ in places}, 4)

    def test_what_is_said_comes_first(self):
        machine = self.machine(fixtures.hgx_connectx)
        devices = jax.devices()[:2]
        mesh = jax.make_mesh((2,), ("ep",), devices=devices)
        by_all = {"JAX_FABRIC_NICS": "mlx5_8,mlx5_9"}
        by_each = {"JAX_FABRIC_NICS": "mlx5_8;mlx5_9"}
        for want, environment, argument in (
            ([("mlx5_8", "mlx5_9")] * 2, by_all, None),
            ([("mlx5_8",), ("mlx5_9",)], by_each, None),
            ([("mlx5_1",)] * 2, by_all, ["mlx5_1"]),
            ([("mlx5_1",), ("mlx5_2",)], by_each, [["mlx5_1"], ["mlx5_2"]]),
        ):
            places = self.choose(
                machine, devices, mesh=mesh, environment=environment, nics=argument
            )
            self.assertEqual([nics for nics, _ in places], want)

    def test_excluded(self):
        machine = self.machine(fixtures.hgx_connectx)
        environment = {"JAX_FABRIC_NICS": "^mlx5_3"}
        places = self.choose(machine, self.gpus(8), environment=environment)
        self.assertNotIn(("mlx5_3",), [nics for nics, _ in places])
        with self.assertRaisesRegex(errors.InvalidArgument, r"JAX_FABRIC_NICS=\^mlx5_3: no NIC"):
            self.choose(Machine(), self.gpus(1), environment=environment)

    def test_a_domain_without_nics_ignores_them(self):
        devices = jax.devices()[:1]
        environment = {"JAX_FABRIC_NICS": "mlx5_3"}
        mesh = jax.make_mesh((1,), ("ep",), devices=devices)
        places = self.choose(Machine(), devices, domain="local", mesh=mesh, environment=environment)
        self.assertEqual(places, [((), ())])

    def test_software_providers_choose_themselves(self):
        devices = jax.devices()[:1]
        mesh = jax.make_mesh((1,), ("ep",), devices=devices)
        places = self.choose(
            self.machine(fixtures.p5), devices, domain="efa", provider="tcp", mesh=mesh
        )
        self.assertEqual(places, [((), ())])


if __name__ == "__main__":
    absltest.main()
