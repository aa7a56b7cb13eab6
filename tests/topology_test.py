"""The topology of machines that are not here, by the files that they would show."""

import itertools
import os
import tempfile
from collections import Counter
from unittest import mock

import numpy as np
import sysfs_testing as fixtures
from absl.testing import absltest, parameterized

from jax_fabric import errors, topology
from jax_fabric.topology import Distance, Machine, NicSelection, PciLocation

# GPU i of hgx_connectx is below one switch with this.
HGX_NICS = tuple((f"mlx5_{(gpu + 3) % 8}",) for gpu in range(8))
P5_NICS = tuple(
    tuple(f"rdmap{bus - 4 + nic}s0" for nic in range(4)) for bus in fixtures._P5_GPU_BUSES
)


class TopologyTest(parameterized.TestCase):
    def folder(self) -> str:
        return self.enter_context(tempfile.TemporaryDirectory())

    def read(self, machine, *arguments, **options) -> Machine:
        return Machine.read(machine(self.folder(), *arguments, **options).root)

    def uses(self, assigned) -> Counter:
        return Counter(itertools.chain.from_iterable(assigned.nics))


class ReadTest(TopologyTest):
    def test_gpus_and_nics_of_an_hgx(self):
        machine = self.read(fixtures.hgx_connectx, roce=True)
        self.assertLen(machine.gpus, 8)
        self.assertEqual(machine.gpus[0].model, "NVIDIA H200")
        self.assertEqual(machine.gpus[0].driver, "nvidia")
        self.assertStartsWith(machine.gpus[7].uuid, "GPU-00000007")
        self.assertEqual([gpu.pci.numa_node for gpu in machine.gpus], [0] * 4 + [1] * 4)
        self.assertEqual([nic.name for nic in machine.nics], [f"mlx5_{i}" for i in range(10)])
        nic = machine.nics[3]
        self.assertEqual(
            (nic.family, nic.driver, nic.model), ("connectx", "mlx5_core", "0x15b3:0x1021")
        )
        self.assertEqual(nic.pci.address, "0000:19:00.0")
        port = nic.port
        self.assertTrue(port.active)
        self.assertEqual((port.number, port.link_layer, port.rate_gbps), (1, "Ethernet", 400))
        self.assertEqual((port.interface, port.mtu_bytes), ("eth1", 9000))
        self.assertEqual([gid.kind for gid in port.gids], ["IB/RoCE v1", "RoCE v2"] * 2)
        self.assertEqual([gid.is_global for gid in port.gids], [False, False, True, True])
        self.assertEqual(str(port.gids[3].address.ipv4_mapped), "10.0.0.1")
        self.assertEqual(machine.numa_nodes[1].cpus[:2], (56, 57))

    def test_efa(self):
        machine = self.read(fixtures.p5)
        self.assertLen(machine.nics, 32)
        self.assertEqual({nic.family for nic in machine.nics}, {"efa"})
        self.assertEqual(machine.nics[0].name, "rdmap79s0")
        self.assertEqual(machine.nics[0].port.link_layer, "Unknown")

    def test_other_devices(self):
        tree = fixtures.SysfsTree(self.folder())
        tree.nic(None, "rxe0", link_layer="Ethernet", rate="2.5 Gb/sec (1X SDR)")
        tree.nic("pci0000:00/0000:00:05.0", "iw0", driver="irdma", node_type="4: RNIC")
        # A switch of NVLink has NVIDIA's vendor, too.
        tree.pci("pci0000:00/0000:00:06.0", fixtures.NVIDIA, "0x22a3", "0x068000", 0, "nvidia")
        tree.gpu("pci0000:00/0000:00:07.0", driver=None)
        machine = Machine.read(tree.root)
        families = {nic.name: nic.family for nic in machine.nics}
        self.assertEqual(families, {"iw0": "other", "rxe0": "connectx"})
        rxe = machine.nics[1]
        self.assertIsNone(rxe.pci)
        self.assertEqual(rxe.numa_node, -1)
        self.assertEqual(rxe.port.rate_gbps, 2.5)
        self.assertLen(machine.gpus, 1)
        self.assertEqual((machine.gpus[0].driver, machine.gpus[0].uuid), ("vfio-pci", None))

    def test_a_container_has_the_gpus_that_the_driver_shows(self):
        tree = fixtures.hgx_connectx(self.folder())
        shown = [gpu.pci.address for gpu in Machine.read(tree.root).gpus[2:4]]
        for folder in (tree.root / "proc/driver/nvidia/gpus").iterdir():
            if folder.name not in shown:
                (folder / "information").unlink()
                folder.rmdir()
        machine = Machine.read(tree.root)
        self.assertEqual([gpu.pci.address for gpu in machine.gpus], shown)
        self.assertEqual([gpu.index for gpu in machine.gpus], [0, 1])

    def test_a_virtual_machine_with_one_gpu(self):
        """As one with an H200 showed itself on 2026-11-30; the UUID is another one."""
        tree = fixtures.SysfsTree(self.folder())
        tree.numa_nodes("0-15")
        for slot, (vendor, device, kind) in enumerate(
            (
                ("0x8086", "0x0d57", "0x060000"),
                ("0x1af4", "0x1042", "0x018000"),
                ("0x1af4", "0x1041", "0x020000"),
                ("0x1af4", "0x1053", "0xffff00"),
            )
        ):
            path = f"pci0000:00/0000:00:{slot:02x}.0"
            tree.pci(path, vendor, device, kind, -1, "virtio-pci")
        tree.gpu("pci0000:00/0000:00:06.0", -1)
        (tree.root / "sys/class/infiniband").mkdir(parents=True)
        machine = Machine.read(tree.root)
        (gpu,) = machine.gpus
        self.assertEqual(gpu.pci, PciLocation(("pci0000:00", "0000:00:06.0"), -1))
        self.assertEqual((gpu.index, gpu.model, gpu.driver), (0, "NVIDIA H200", "nvidia"))
        self.assertEqual(machine.nics, ())
        self.assertEqual(topology.cpus_of_gpu(machine, 0, None), ())

    def test_an_empty_machine(self):
        self.assertEqual(Machine.read(self.folder()), Machine())

    def test_this_machine(self):
        machine = Machine.read()
        cpus = set(itertools.chain.from_iterable(node.cpus for node in machine.numa_nodes))
        if cpus:
            self.assertContainsSubset(os.sched_getaffinity(0), cpus)

    @parameterized.parameters(
        ("", ()), ("0", (0,)), ("0-3,8\n", (0, 1, 2, 3, 8)), ("2,0-1", (0, 1, 2))
    )
    def test_cpu_lists(self, text, cpus):
        self.assertEqual(topology.parse_cpu_list(text), cpus)
        self.assertEqual(topology.parse_cpu_list(topology.format_cpu_list(cpus)), cpus)


class DistanceTest(TopologyTest):
    def test_of_an_hgx(self):
        machine = self.read(fixtures.hgx_connectx)
        nics = {nic.name: nic for nic in machine.nics}
        gpu = machine.gpus[0]
        for name, want in {
            "mlx5_3": Distance.SWITCH,
            "mlx5_4": Distance.NUMA_NODE,
            "mlx5_8": Distance.NUMA_NODE,
            "mlx5_7": Distance.ACROSS,
        }.items():
            self.assertEqual(machine.distance(gpu.pci, nics[name].pci), want, name)
        self.assertEqual(topology.hops(gpu.pci, nics["mlx5_3"].pci), 4)

    def test_one_root_complex(self):
        a = PciLocation(("pci0000:10", "0000:10:1b.0"), 0)
        b = PciLocation(("pci0000:10", "0000:10:1c.0"), 0)
        self.assertEqual(topology.distance(a, b, 2), Distance.ROOT_COMPLEX)

    @parameterized.parameters(
        (0, 0, 2, Distance.NUMA_NODE),
        (0, 1, 2, Distance.ACROSS),
        (-1, -1, 2, Distance.ACROSS),  # nobody knows
        (-1, -1, 1, Distance.NUMA_NODE),
        (-1, -1, 0, Distance.NUMA_NODE),
    )
    def test_of_root_complexes(self, a, b, nodes, want):
        one = PciLocation(("pci0000:00", "0000:00:01.0"), a)
        other = PciLocation(("pci0000:80", "0000:80:01.0"), b)
        self.assertEqual(topology.distance(one, other, nodes), want)

    def test_a_cpu_has_no_place(self):
        at = PciLocation(("pci0000:00", "0000:00:01.0"), 0)
        self.assertEqual(topology.distance(None, at, 1), Distance.ACROSS)


class AssignTest(TopologyTest):
    def test_every_gpu_of_an_hgx_gets_its_own(self):
        _, assigned = topology.assign(self.read(fixtures.hgx_connectx), "connectx")
        self.assertEqual(assigned.nics, HGX_NICS)
        self.assertEqual(set(assigned.left_out), {"mlx5_8", "mlx5_9"})
        self.assertIn("farther from every GPU", assigned.left_out["mlx5_8"])

    def test_p5(self):
        _, assigned = topology.assign(self.read(fixtures.p5), "efa")
        self.assertEqual({*map(frozenset, assigned.nics)}, {*map(frozenset, P5_NICS)})
        self.assertEqual(list(map(set, assigned.nics)), list(map(set, P5_NICS)))
        self.assertEqual(assigned.left_out, {})

    def test_p5en(self):
        _, assigned = topology.assign(self.read(fixtures.p5en), "efa")
        self.assertEqual(set(self.uses(assigned).values()), {1})
        self.assertLen(self.uses(assigned), 16)
        self.assertEqual(set(assigned.nics[0]), {"rdmap81s0", "rdmap82s0"})

    def test_two_gpus_share_the_nic_of_their_root_complex(self):
        _, assigned = topology.assign(self.read(fixtures.p4d), "efa")
        want = [(f"rdmap{bus}s27",) for bus in (0x10, 0x10, 0x20, 0x20, 0x90, 0x90, 0xA0, 0xA0)]
        self.assertEqual(list(assigned.nics), want)

    def test_one_gpu_one_nic(self):
        _, assigned = topology.assign(self.read(fixtures.one_gpu_one_nic), "connectx")
        self.assertEqual(assigned.nics, (("mlx5_0",),))

    @parameterized.parameters((4, 4, 1), (4, 8, 2), (2, 8, 4), (8, 4, 1), (1, 8, 4))
    def test_flat_virtual_machines(self, gpus, nics, each):
        machine = self.read(fixtures.flat_virtual_machine, gpus, nics)
        _, assigned = topology.assign(machine, "connectx")
        self.assertEqual({len(chosen) for chosen in assigned.nics}, {each})
        used = self.uses(assigned)
        self.assertLessEqual(max(used.values()), -(-gpus * each // nics))

    @parameterized.parameters((3, 4), (8, 10), (5, 7), (4, 7), (7, 3), (8, 31))
    def test_numbers_that_do_not_divide(self, gpus, nics):
        """Each GPU has as many, and no NIC has more than its share."""
        devices = [PciLocation(("pci0000:00", f"0000:00:{i:02x}.0"), 0) for i in range(gpus)]
        places = [PciLocation(("pci0000:00", f"0000:00:{i:02x}.1"), 0) for i in range(nics)]
        machine = Machine(
            gpus=tuple(topology.Gpu(i, at) for i, at in enumerate(devices)),
            nics=tuple(_nic(f"n{i}", at) for i, at in enumerate(places)),
        )
        for each in (None, 1, 2, 3, 4):
            _, assigned = topology.assign(machine, "connectx", nics_per_device=each)
            want = min(each or max(1, min(4, nics // gpus)), nics)
            self.assertEqual({len(set(chosen)) for chosen in assigned.nics}, {want})
            used = self.uses(assigned)
            self.assertLessEqual(max(used.values()), -(-gpus * want // nics))
            self.assertEqual(set(assigned.left_out), {n.name for n in machine.nics} - set(used))

    def test_random_machines(self):
        """Whatever is where: as many for each, each once, no NIC more than one above its share."""
        random = np.random.default_rng(5)
        for _ in range(200):
            gpus, nics, nodes = (int(random.integers(1, most)) for most in (9, 20, 3))

            def place(slot, nodes=nodes):
                node = int(random.integers(nodes))
                switch = int(random.integers(3))
                bus = 16 * (3 * node + switch) + 1
                return PciLocation(
                    (
                        f"pci0000:{bus:02x}",
                        f"0000:{bus:02x}:01.0",
                        f"0000:{bus + 1:02x}:{slot:02x}.0",
                    ),
                    node,
                )

            machine = Machine(
                gpus=tuple(topology.Gpu(i, place(i)) for i in range(gpus)),
                nics=tuple(_nic(f"n{i}", place(16 + i)) for i in range(nics)),
                numa_nodes=tuple(topology.NumaNode(i, (i,)) for i in range(nodes)),
            )
            _, assigned = topology.assign(machine, "connectx")
            usable = nics - sum("farther" in why for why in assigned.left_out.values())
            each = len(assigned.nics[0])
            self.assertEqual({len(set(chosen)) for chosen in assigned.nics}, {each})
            used = self.uses(assigned)
            self.assertLessEqual(max(used.values()), -(-gpus * each // usable) + 1)
            # Nobody gains by giving its NIC for a nearer one that is not used.
            for gpu, chosen in zip(machine.gpus, assigned.nics, strict=True):
                by_name = {nic.name: nic for nic in machine.nics}
                worst = max(machine.distance(gpu.pci, by_name[name].pci) for name in chosen)
                for nic in machine.nics:
                    if "NICs for" in assigned.left_out.get(nic.name, ""):
                        self.assertGreaterEqual(machine.distance(gpu.pci, nic.pci), worst)

    def test_a_link_that_is_down(self):
        """Its GPU shares the NIC of another one on its own CPU; nobody else notices."""
        machine = self.read(fixtures.hgx_connectx, down=[2])
        _, assigned = topology.assign(machine, "connectx")
        self.assertEqual(assigned.nics[:2] + assigned.nics[3:], HGX_NICS[:2] + HGX_NICS[3:])
        self.assertIn(assigned.nics[2], (HGX_NICS[0], HGX_NICS[1], HGX_NICS[3]))
        self.assertEqual(assigned.left_out["mlx5_5"], "its link is DOWN")

    def test_as_many_nics_with_a_link_down(self):
        """Peers on other machines have four each: so has everybody here."""
        tree = fixtures.p5(self.folder())
        state = tree.root / "sys/class/infiniband/rdmap97s0/ports/1/state"
        state.write_text("1: DOWN\n")
        _, assigned = topology.assign(Machine.read(tree.root), "efa")
        self.assertEqual({len(set(chosen)) for chosen in assigned.nics}, {4})
        self.assertEqual(sorted(self.uses(assigned).values()), [1] * 30 + [2])

    def test_storage_on_another_link_layer_or_slower(self):
        tree = fixtures.p4d(self.folder())  # its NICs are no matter here
        for nic in range(8):
            tree.nic(f"pci0000:10/0000:10:{nic:02x}.0", f"mlx5_{nic}")
        tree.roce("pci0000:10/0000:10:0a.0", "mlx5_8")
        tree.nic("pci0000:10/0000:10:0b.0", "mlx5_9", model=fixtures.CONNECTX_6, rate="100 Gb/sec")
        tree.nic("pci0000:10/0000:10:0c.0", "mlx5_10", rate="200 Gb/sec (4X HDR)")
        tree.nic("pci0000:10/0000:10:0d.0", "mlx5_11", node_type="4: RNIC")
        data = topology.find_data_nics(Machine.read(tree.root), "connectx")
        self.assertEqual([nic.name for nic in data.usable], [f"mlx5_{i}" for i in range(8)])
        self.assertIn("Ethernet 0x15b3:0x1021; rows go over InfiniBand", data.left_out["mlx5_8"])
        self.assertIn("0x15b3:0x101b", data.left_out["mlx5_9"])
        self.assertEqual(data.left_out["mlx5_10"], "runs at 200 Gb/s, the others at 400")
        self.assertEqual(data.left_out["mlx5_11"], "is no NIC of connectx")
        self.assertEqual(data.left_out["rdmap16s27"], "is no NIC of connectx")

    def test_excluded(self):
        machine = self.read(fixtures.hgx_connectx)
        _, assigned = topology.assign(machine, "connectx", exclude=["mlx5_3"])
        self.assertEqual(assigned.left_out["mlx5_3"], "excluded")
        self.assertNotIn("mlx5_3", self.uses(assigned))

    def test_all_down_or_none(self):
        down = self.read(fixtures.hgx_connectx, down=range(8))
        data = topology.find_data_nics(down, "connectx", exclude=["mlx5_8", "mlx5_9"])
        self.assertEqual((data.usable, data.installed), ((), 8))
        seen, assigned = topology.assign(self.read(fixtures.hgx_connectx), "efa")
        self.assertEqual(assigned.nics, ((),) * 8)
        self.assertLen(seen, 8)

    def test_cpu_devices_take_turns(self):
        machine = self.read(fixtures.flat_virtual_machine, 0, 3)
        chosen = [topology.nics_of_cpu_device(machine, "connectx", i, 6, ()) for i in range(6)]
        self.assertEqual(Counter(chosen), {(f"mlx5_{i}",): 2 for i in range(3)})
        self.assertEqual(topology.nics_of_cpu_device(Machine(), "connectx", 0, 1, ()), ())

    @parameterized.parameters(0, 5)
    def test_bad_numbers(self, each):
        with self.assertRaisesRegex(errors.InvalidArgument, f"nics_per_device={each}: .* 1 to 4"):
            topology.assign(Machine(), "efa", nics_per_device=each)


class VisibleTest(TopologyTest):
    def setUp(self):
        super().setUp()
        self.machine = self.read(fixtures.hgx_connectx)

    def seen(self, visible):
        return [gpu.index for gpu in topology.visible_gpus(self.machine.gpus, visible)]

    def test_forms(self):
        last = self.machine.gpus[7].uuid
        for visible, want in {
            None: list(range(8)),
            "0,1,2,3": [0, 1, 2, 3],
            " 6 , 2 ": [6, 2],
            "": [],
            "-1": [],
            "2,-1,3": [2],
            "2,8,3": [2],
            "2,no such thing,3": [2],
            f"{last},GPU-00000004": [7, 4],
            "GPU-0000": [],  # of all of them
        }.items():
            self.assertEqual(self.seen(visible), want, visible)

    @parameterized.parameters(
        ("1,1", "'1' is GPU 1, which is there already"),
        ("0,MIG-GPU-00000000/1/0", "a part of a GPU"),
    )
    def test_refused(self, visible, message):
        with self.assertRaisesRegex(errors.InvalidArgument, f"CUDA_VISIBLE_DEVICES=.*{message}"):
            self.seen(visible)

    @parameterized.parameters("4,5,6,7", "GPU-00000004,GPU-00000005,GPU-00000006,GPU-00000007")
    def test_half_of_them_have_their_own_nics(self, visible):
        """The other half is somebody else's."""
        seen, assigned = topology.assign(self.machine, "connectx", visible=visible)
        self.assertEqual([gpu.index for gpu in seen], [4, 5, 6, 7])
        self.assertEqual(assigned.nics, HGX_NICS[4:])
        nics = topology.nics_of_gpu(self.machine, "connectx", 1, visible, ())
        self.assertEqual(nics, HGX_NICS[5])

    def test_cores_are_those_of_the_gpus_node(self):
        allowed = {0, 1, 2, 56, 57}
        with mock.patch.object(os, "sched_getaffinity", return_value=allowed):
            self.assertEqual(topology.cpus_of_gpu(self.machine, 0, None), (0, 1, 2))
            self.assertEqual(topology.cpus_of_gpu(self.machine, 0, "7"), (56, 57))
        with mock.patch.object(os, "sched_getaffinity", return_value={0}):
            self.assertEqual(topology.cpus_of_gpu(self.machine, 7, None), ())
        flat = self.read(fixtures.flat_virtual_machine)
        self.assertEqual(topology.cpus_of_gpu(flat, 0, None), ())


class SelectionTest(parameterized.TestCase):
    def test_for_all_or_for_each(self):
        same = NicSelection.make(["a", "b"])
        self.assertEqual([same.of_device(i, 3) for i in range(3)], [("a", "b")] * 3)
        each = NicSelection.make([["a", "b"], ["c", "d"]])
        self.assertEqual([each.of_device(i, 2) for i in range(2)], [("a", "b"), ("c", "d")])
        with self.assertRaisesRegex(errors.InvalidArgument, "2 devices, and this process has 3"):
            each.of_device(0, 3)

    @parameterized.parameters(
        ("mlx5_0", r"give a list of names, as \['mlx5_0'\]"),
        ([], "names of 1 to 4 NICs"),
        (["a", "b", "c", "d", "e"], "names of 1 to 4 NICs"),
        ([["a"], []], "names of 1 to 4 NICs"),
        (["a", "a"], "name each NIC once"),
        (["a", ""], "names of 1 to 4 NICs"),
    )
    def test_refused(self, nics, message):
        with self.assertRaisesRegex(errors.InvalidArgument, f"nics=.*{message}"):
            NicSelection.make(nics)


def _nic(name: str, at: PciLocation) -> topology.Nic:
    port = topology.Port(1, "ACTIVE", "InfiniBand", 400)
    return topology.Nic(name, "connectx", "mlx5_core", "0x15b3:0x1021", at, (port,))


if __name__ == "__main__":
    absltest.main()
