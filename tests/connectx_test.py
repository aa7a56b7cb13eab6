"""MoE exchanges over a double of libibverbs, against the oracle, and what is said without a device.

scripts/soft_roce has devices (docs/connectx.md).
"""

import os
from pathlib import Path
from unittest import mock

import jax
import nic_programs
import processes_testing
from absl.testing import absltest, parameterized

import jax_fabric as jf
from jax_fabric import engine, errors
from jax_fabric.testing import launch

_FOLDER = "csrc/engine/domains/connectx/double"
_DOUBLE = Path(__file__).resolve().parent.parent / "bazel-bin" / _FOLDER / "libverbs_double.so"


class ExchangeTest(parameterized.TestCase):
    def test_processes_agree_with_the_oracle(self):
        processes = 2
        self.assertTrue(
            _DOUBLE.is_file(),
            f"no {_DOUBLE}: bazel build --config=ci //{_FOLDER}:libverbs_double.so",
        )
        with mock.patch.dict(os.environ, {"XLA_FLAGS": processes_testing.FAST}):
            results = launch.run(
                nic_programs.run_checks,
                processes_testing.expected(processes),
                processes=processes,
                timeout_s=300,
                environment={
                    "JAX_FABRIC_DOMAIN": "connectx",
                    "JAX_FABRIC_CONNECTX_LIBRARY": str(_DOUBLE),
                },
            )
        for result in results:
            for check in nic_programs.CHECKS:
                self.assertEqual(result.value[check], "", f"process {result.rank}: {check}")


class RefusalTest(parameterized.TestCase):
    def test_providers_are_of_efa(self):
        message = "provider='tcp': only domain='efa' has providers"
        with (
            engine.TransferEngine() as fabric,
            self.assertRaisesRegex(errors.InvalidArgument, message),
        ):
            fabric.add_group(domain="connectx", provider="tcp")
        mesh = jax.make_mesh((1,), ("ep",))
        with self.assertRaisesRegex(ValueError, message):
            jf.Fabric(mesh, domain="connectx", provider="tcp")

    @parameterized.parameters("argument", "environment")
    def test_nothing_falls_back(self, chosen_by):
        environment = {"JAX_FABRIC_NICS": "no_such_device"}
        arguments = {}
        if chosen_by == "environment":
            environment["JAX_FABRIC_DOMAIN"] = "connectx"
        else:
            arguments["domain"] = "connectx"
        mesh = jax.make_mesh((1,), ("ep",))
        with (
            mock.patch.dict(os.environ, environment),
            self.assertRaisesRegex(errors.FabricError, "no RDMA device 'no_such_device'.*Found: "),
        ):
            jf.Fabric(mesh, **arguments)

    def test_a_missing_library_says_what_to_install(self):
        library = {"JAX_FABRIC_CONNECTX_LIBRARY": "libibverbs_that_is_not_there.so"}
        with (
            mock.patch.dict(os.environ, library),
            engine.TransferEngine() as fabric,
            self.assertRaisesRegex(
                errors.FabricError, "libibverbs_that_is_not_there.*apt-get install libibverbs1"
            ),
        ):
            fabric.add_group(domain="connectx")


if __name__ == "__main__":
    absltest.main()
