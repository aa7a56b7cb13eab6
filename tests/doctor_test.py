"""jax-fabric doctor, on machines of fixtures and on this one."""

import contextlib
import ctypes.util
import io
import json
import os
import signal
import socket
import tempfile
from pathlib import Path
from unittest import mock

import sysfs_testing as fixtures
from absl.testing import absltest, parameterized

from jax_fabric.cli import main
from jax_fabric.observe.doctor import Finding, examine, gpu_checks, report, selftest
from jax_fabric.observe.doctor.examine import environment_findings
from jax_fabric.topology import Machine


class DoctorTest(parameterized.TestCase):
    def folder(self) -> str:
        return self.enter_context(tempfile.TemporaryDirectory())

    def find(self, findings, subject, check) -> Finding:
        (found,) = (f for f in findings if (f.subject, f.check) == (subject, check))
        return found

    def run_command(self, *arguments):
        """Exit code and output."""
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = main.main(["doctor", *arguments])
        return code, output.getvalue()


class FixturesTest(DoctorTest):
    def test_a_healthy_machine(self):
        tree = fixtures.hgx_connectx(self.folder(), roce=True)
        findings = examine(tree.root)
        self.assertEqual([f for f in findings if f.state in ("warning", "problem")], [])
        used = self.find(findings, "NIC mlx5_3", "used for")
        self.assertEqual(used.value, "GPU 0 (switch)")
        self.assertIn("RoCE v2, 10.0.0.1 (index 3)", self.find(findings, "NIC mlx5_3", "GID").value)
        self.assertIn("nothing: farther", self.find(findings, "NIC mlx5_9", "used for").value)
        self.assertIn("580.95.05, open", self.find(findings, "GPUs", "driver").value)
        self.assertEqual(self.run_command("--sysfs", str(tree.root))[0], 0)

    @parameterized.parameters(
        fixtures.p5,
        fixtures.p5en,
        fixtures.p4d,
        fixtures.one_gpu_one_nic,
        fixtures.flat_virtual_machine,
    )
    def test_other_healthy_machines(self, make):
        tree = make(self.folder())
        code, output = self.run_command("--sysfs", str(tree.root), "--json")
        report = json.loads(output)
        self.assertEqual((code, report["ok"], report["problems"]), (0, True, 0))
        subjects = {each["subject"] for each in report["findings"]}
        machine = Machine.read(tree.root)
        self.assertContainsSubset({f"NIC {nic.name}" for nic in machine.nics}, subjects)
        self.assertContainsSubset({f"GPU {gpu.index}" for gpu in machine.gpus}, subjects)

    def test_a_link_that_is_down(self):
        tree = fixtures.hgx_connectx(self.folder(), down=[0], roce=True)
        link = self.find(examine(tree.root), "NIC mlx5_3", "link")
        self.assertEqual(link.state, "problem")
        self.assertIn("sudo ip link set eth1 up", link.fix)
        code, output = self.run_command("--sysfs", str(tree.root))
        self.assertEqual(code, 1)
        self.assertIn("what mends it", output)
        self.assertIn("1 problem, 0 warnings", output)

    def test_storage_may_be_down(self):
        tree = fixtures.hgx_connectx(self.folder(), roce=True)
        (tree.root / "sys/class/infiniband/mlx5_8/ports/1/state").write_text("1: DOWN\n")
        findings = examine(tree.root)
        self.assertEqual(self.find(findings, "NIC mlx5_8", "link").state, "note")

    def test_infiniband_without_a_subnet_manager(self):
        tree = fixtures.SysfsTree(self.folder())
        tree.nic("pci0000:00/0000:00:01.0", "mlx5_0", state="2: INIT")
        self.assertIn("opensm", self.find(examine(tree.root), "NIC mlx5_0", "link").fix)

    @parameterized.parameters(
        ([], "problem", "none of RoCE v2"),
        ([(fixtures.GLOBAL_GID.format(1), "IB/RoCE v1")], "problem", "none of RoCE v2"),
        ([(fixtures.LINK_GID.format(1), "RoCE v2")], "warning", "of this link alone"),
        ([(fixtures.GLOBAL_GID.format(1), "RoCE v2")], "ok", "10.0.0.1"),
        # The prefix alone, as some drivers fill the table.
        ([("fe80:0000:0000:0000:0000:0000:0000:0000", "RoCE v2")], "problem", "none of RoCE v2"),
    )
    def test_gids(self, gids, state, words):
        tree = fixtures.SysfsTree(self.folder())
        tree.roce("pci0000:00/0000:00:01.0", "mlx5_0", gids=gids)
        gid = self.find(examine(tree.root), "NIC mlx5_0", "GID")
        self.assertEqual(gid.state, state)
        self.assertIn(words, gid.value)
        self.assertEqual("sudo ip addr add" in gid.fix, state != "ok")

    @parameterized.parameters((1500, "warning"), (4199, "warning"), (4200, "ok"), (9000, "ok"))
    def test_mtu(self, mtu, state):
        tree = fixtures.SysfsTree(self.folder())
        tree.roce("pci0000:00/0000:00:01.0", "mlx5_0", mtu=mtu)
        found = self.find(examine(tree.root), "NIC mlx5_0", "MTU")
        self.assertEqual(found.state, state)
        self.assertEqual("mtu 9000" in found.fix, state == "warning")

    def test_a_slow_link(self):
        tree = fixtures.hgx_connectx(self.folder())
        (tree.root / "sys/class/infiniband/mlx5_3/ports/1/rate").write_text("100 Gb/sec (4X EDR)")
        link = self.find(examine(tree.root), "NIC mlx5_3", "link")
        self.assertEqual(link.state, "warning")
        self.assertIn("runs at 100 Gb/s, the others at 400", link.value)

    def test_a_nic_of_software(self):
        """As soft-RoCE shows itself in the virtual machine of scripts/soft_roce."""
        tree = fixtures.SysfsTree(self.folder())
        gids = [
            (fixtures.LINK_GID.format(1), "RoCE v2"),
            (fixtures.GLOBAL_GID.format(1), "RoCE v2"),
        ]
        options = dict(link_layer="Ethernet", rate="10 Gb/sec (4X SDR)", interface="ve0", mtu=4500)
        tree.nic(None, "rxe0", gids=gids, **options)
        findings = examine(tree.root)
        nic = [f for f in findings if f.subject == "NIC rxe0"]
        self.assertEqual([f.state for f in nic], ["ok", "ok", "ok", "ok", "note"])
        self.assertEqual(nic[0].value, "connectx, of software")

    def test_a_nic_of_another_kind(self):
        tree = fixtures.SysfsTree(self.folder())
        tree.nic("pci0000:00/0000:00:01.0", "iw0", node_type="4: RNIC")
        self.assertIn("iWARP", self.find(examine(tree.root), "NIC iw0", "device").value)

    @parameterized.parameters(
        ("unlimited", "0", "ok"), ("65536", "0", "problem"), ("65536", f"{1 << 14:x}", "ok")
    )
    def test_locked_memory(self, limit, capabilities, state):
        tree = fixtures.one_gpu_one_nic(self.folder())
        tree.file(
            "proc/self/limits",
            f"Limit                     Soft Limit           Hard Limit           Units\n"
            f"Max locked memory         {limit:<20} {limit:<20} bytes",
        )
        tree.file("proc/self/status", f"Name:\tcat\nCapEff:\t{capabilities:>016}")
        self.assertEqual(self.find(examine(tree.root), "machine", "memlock").state, state)

    def test_little_locked_memory_matters_with_nics_alone(self):
        tree = fixtures.SysfsTree(self.folder())
        tree.file("sys/devices/system/node/node0/cpulist", "0-7")
        tree.file("proc/self/limits", "Max locked memory         65536     65536     bytes")
        self.assertEqual(self.find(examine(tree.root), "machine", "memlock").state, "note")
        expecting = examine(tree.root, expect=["efa"])
        self.assertEqual(self.find(expecting, "machine", "memlock").state, "problem")

    @parameterized.parameters((None, "ok"), ("0", "ok"), ("1", "warning"), ("3", "warning"))
    def test_ptrace_scope(self, scope, state):
        tree = fixtures.one_gpu_one_nic(self.folder())
        if scope:
            tree.file("proc/sys/kernel/yama/ptrace_scope", scope)
        self.assertEqual(self.find(examine(tree.root), "machine", "ptrace scope").state, state)

    @parameterized.parameters(
        ("always [madvise] never", "ok"), ("always madvise [never]", "warning")
    )
    def test_huge_pages(self, enabled, state):
        tree = fixtures.one_gpu_one_nic(self.folder())
        tree.file("sys/kernel/mm/transparent_hugepage/enabled", enabled)
        self.assertEqual(self.find(examine(tree.root), "machine", "huge pages").state, state)

    def test_a_gpu_without_a_driver(self):
        tree = fixtures.SysfsTree(self.folder())
        tree.gpu("pci0000:00/0000:00:01.0", driver=None)
        findings = examine(tree.root)
        self.assertEqual(self.find(findings, "GPU 0", "device").state, "problem")
        self.assertIn("nvidia-open", self.find(findings, "GPUs", "driver").fix)

    @parameterized.parameters(
        ("6.8.0-60-generic", "580.95.05", "Open Kernel Module for x86_64", False, "ok", "note"),
        ("5.4.0", "580.95.05", "Open Kernel Module for x86_64", False, "note", "problem"),
        ("6.8.0", "470.82.01", "x86_64 Kernel Module", False, "note", "problem"),
        ("6.8.0", "470.82.01", "x86_64 Kernel Module", True, "note", "ok"),
    )
    def test_a_way_to_gpu_memory(self, kernel, driver, kind, peermem, dmabuf, want):
        tree = fixtures.one_gpu_one_nic(self.folder())
        tree.file("proc/sys/kernel/osrelease", kernel)
        tree.file(
            "proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX {kind}  {driver}  Release"
        )
        if peermem:
            tree.file("sys/module/nvidia_peermem/refcnt", 0)
        findings = examine(tree.root)
        self.assertEqual(self.find(findings, "GPUs", "dmabuf").state, dmabuf)
        found = self.find(findings, "GPUs", "nvidia-peermem")
        self.assertEqual(found.state, want)
        self.assertEqual("modprobe nvidia-peermem" in found.fix, want == "problem")

    @parameterized.parameters((0, "problem"), (100, "ok"), (200, "ok"), (None, None))
    def test_the_order_of_what_nics_write(self, attribute, state):
        with mock.patch.object(gpu_checks, "_ask_cuda", return_value=attribute):
            findings = list(gpu_checks._order())
        self.assertEqual([found.state for found in findings], [state] if state else [])
        self.assertEqual(any("force_staged" in found.fix for found in findings), attribute == 0)

    @parameterized.parameters(
        ("4,5,6,7", "note"), ("4,9", "warning"), ("1,1", "problem"), ("", "note")
    )
    def test_visible_gpus(self, visible, state):
        tree = fixtures.hgx_connectx(self.folder())
        found = self.find(examine(tree.root, visible=visible), "GPUs", "visible")
        self.assertEqual(found.state, state)

    @parameterized.parameters("gpu", "efa", "connectx")
    def test_what_is_expected(self, what):
        tree = fixtures.SysfsTree(self.folder())
        tree.numa_nodes("0-7")
        self.assertEqual(self.run_command("--sysfs", str(tree.root))[0], 0)
        code, output = self.run_command("--sysfs", str(tree.root), "--expect", what, "--json")
        self.assertEqual(code, 1)
        self.assertEqual(json.loads(output)["problems"], 1)

    def test_a_complaint_needs_a_remedy(self):
        with self.assertRaisesRegex(ValueError, "without a fix"):
            Finding("machine", "cores", "problem", "none")

    def test_what_is_found_is_no_markup(self):
        console = mock.Mock(wraps=report.Console(file=io.StringIO(), width=120))
        report.print_table([Finding("NIC [x]", "a", "warning", "[/b]", "[c]")], console)
        output = console.file.getvalue()
        for text in ("NIC [x]", "[/b]", "[c]"):
            self.assertIn(text, output)


class ArgumentsTest(DoctorTest):
    @parameterized.parameters(
        (["--sysfs", "/no/such/folder"], "there is no folder"),
        (["--sysfs", "/proc/..", "--selftest"], "leave --sysfs away"),
        (["--timeout", "0"], "must be above 0"),
        (["--expect", "tpu"], "invalid choice"),
        (["--json", "/no/such/folder/x.json"], "there is no folder"),
    )
    def test_refused(self, arguments, message):
        with (
            contextlib.redirect_stderr(io.StringIO()) as errors,
            self.assertRaises(SystemExit) as ended,
        ):
            main.main(["doctor", *arguments])
        self.assertEqual(ended.exception.code, 2)
        self.assertIn(message, errors.getvalue())


class ThisMachineTest(DoctorTest):
    def test_ctrl_c_stays_pythons(self):
        examine(fixtures.hgx_connectx(self.folder(), roce=True).root)
        caught = next(
            int(line.split()[1], 16)
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("SigCgt:")
        )
        self.assertFalse(caught & 1 << (signal.SIGTERM - 1), hex(caught))

    def test_host_name(self):
        self.assertEqual(self.find(examine("/"), "machine", "host name").state, "ok")
        with mock.patch.object(socket, "gethostname", return_value="nobody.invalid"):
            found = self.find(examine("/"), "machine", "host name")
        self.assertEqual(found.state, "warning")
        self.assertIn("nobody.invalid has no address", found.value)
        self.assertIn("'127.0.0.1 nobody.invalid'", found.fix)

    def test_for_real(self):
        """Whatever this machine has: transfers through memory work, and TCP where libfabric is."""
        file = Path(self.folder(), "doctor.json")
        code, output = self.run_command("--selftest", "--timeout=120", "--json", str(file))
        rows = json.loads(file.read_text())["findings"]
        found = {(row["subject"], row["check"]): row for row in rows}
        local = found["self-test", "local"]
        self.assertEqual(local["state"], "ok", local)
        self.assertIn("to another process by shared memory", local["value"])
        tcp = found["self-test", "efa over tcp"]
        has_libfabric = ctypes.util.find_library("fabric") is not None
        self.assertEqual(tcp["state"], "ok" if has_libfabric else "note", tcp)
        self.assertEqual(found["libfabric", "library"]["state"] == "ok", has_libfabric)
        if has_libfabric:
            self.assertIn("tcp;ofi_rxm", found["libfabric", "providers"]["value"])
        self.assertIn("not run", found["self-test", "GPUs"]["value"])
        self.assertEqual(code, int(any(row["state"] == "problem" for row in rows)))
        self.assertIn("jax_fabric 0.", output)


class EnvironmentTest(DoctorTest):
    @parameterized.parameters(
        ({}, "ok", "domain local"),
        ({"JAX_FABRIC_DOMAIN": "connectx"}, "ok", "domain connectx"),
        ({"JAX_FABRIC_SPINUS": "5"}, "problem", "JAX_FABRIC_SPINUS is not known"),
        ({"JAX_FABRIC_NICS": "a,a"}, "problem", "JAX_FABRIC_NICS: 'a,a' is not accepted"),
        (
            {"JAX_FABRIC_DOMAIN": "connectx", "JAX_FABRIC_NICS": "mlx5_0,mlx5_7"},
            "problem",
            "JAX_FABRIC_NICS mlx5_0, mlx5_7: not here",
        ),
        (
            {"JAX_FABRIC_DOMAIN": "connectx", "JAX_FABRIC_NICS": "^mlx5_1"},
            "ok",
            "JAX_FABRIC_NICS ^mlx5_1",
        ),
        # Of this provider NICs are network interfaces.
        (
            {
                "JAX_FABRIC_DOMAIN": "efa",
                "JAX_FABRIC_EFA_PROVIDER": "tcp",
                "JAX_FABRIC_NICS": "eth0",
            },
            "ok",
            "provider tcp;ofi_rxm",
        ),
    )
    def test_variables(self, variables, state, words):
        tree = fixtures.flat_virtual_machine(self.folder(), gpus=1, nics=2)
        with mock.patch.dict(os.environ, variables):
            (found,) = environment_findings(Machine.read(tree.root))
        self.assertEqual(found.state, state)
        self.assertIn(words, found.value)


class RouteTest(DoctorTest):
    @parameterized.parameters(
        (selftest.Route("a", "efa", "no_such_provider"), "no_such_provider.*Found"),
        (selftest.Route("b", "connectx", None, (("no_such_nic",),) * 2), "no_such_nic"),
        (
            selftest.Route("c", "efa", "tcp", (("lo",), ("no_such_nic",))),
            "receiving process: no NIC 'no_such_nic'",
        ),
    )
    def test_what_goes_wrong_is_said(self, route, words):
        found = selftest.run_route(route, timeout_s=90)
        self.assertEqual(found.state, "problem")
        self.assertRegex(found.value, words)

    def test_a_receiving_process_that_dies(self):
        with mock.patch.object(selftest.sys, "executable", "/bin/false"):
            found = selftest.run_route(selftest.Route("a", "local"), timeout_s=90)
        self.assertEqual(found.state, "problem")
        self.assertIn("ended with 1", found.value)

    def test_every_nic_is_tried(self):
        tree = fixtures.flat_virtual_machine(self.folder(), gpus=1, nics=3)
        names = [route.name for route in selftest.routes(Machine.read(tree.root))]
        self.assertEqual(
            names,
            [
                "local",
                "efa over tcp",
                *(f"connectx mlx5_{i}" for i in range(3)),
                "connectx mlx5_0 to mlx5_1",
                "connectx mlx5_1 to mlx5_2",
            ],
        )


if __name__ == "__main__":
    absltest.main()
