"""What runs over libfabric: MoE exchanges against the oracle, the engine's groups, and refusals.

TCP, shared memory and a fake SRD device stand for the NIC (docs/nics.md).
"""

import contextlib
import importlib.metadata
import io
import os
from unittest import mock

import engine_testing
import jax
import nic_programs
import numpy as np
import processes_testing
from absl.testing import absltest, parameterized

import jax_fabric as jf
from jax_fabric import engine, errors
from jax_fabric.cli import main
from jax_fabric.testing import fake_srd, launch


def over(provider):
    return {"JAX_FABRIC_DOMAIN": "efa", "JAX_FABRIC_EFA_PROVIDER": provider}


OVER_TCP = over("tcp")


class ExchangeTest(parameterized.TestCase):
    @parameterized.product(provider=("tcp", "shm", "efa", "efa-direct"), processes=(2, 4))
    def test_processes_agree_with_the_oracle(self, provider, processes):
        over_fake_srd = provider.startswith("efa")
        program = (
            nic_programs.run_checks_over_fake_srd if over_fake_srd else nic_programs.run_checks
        )
        environment = over(provider)
        with mock.patch.dict(os.environ, {"XLA_FLAGS": processes_testing.FAST}):
            results = launch.run(
                program,
                processes_testing.expected(processes),
                processes=processes,
                timeout_s=300,
                environment=environment,
            )
        for result in results:
            for check in nic_programs.CHECKS:
                self.assertEqual(result.value[check], "", f"process {result.rank}: {check}")


class GroupTest(parameterized.TestCase):
    def test_a_write_brings_rows_and_its_immediate(self):
        with mock.patch.dict(os.environ, OVER_TCP), engine_testing.Pair() as pair:
            rows = np.random.default_rng(0).integers(0, 256, 3 << 20, dtype=np.uint8)
            source, target = pair.source(rows), pair.target(rows.nbytes)
            (immediate,) = pair.b.allocate_immediates(1)
            count = pair.b.write_immediates(pair.to_a, rows.nbytes)
            pair.a.write(pair.to_b, source, target.descriptor, immediate=immediate).wait()
            pair.b.expect(immediate, count).wait()
            np.testing.assert_array_equal(target.array, rows)

    def test_groups_of_different_transports_refuse_each_other(self):
        with engine.TransferEngine() as fabric:
            one = fabric.add_group("one", domain="efa", provider="tcp")
            other = fabric.add_group("other", domain="local")
            with self.assertRaisesRegex(errors.FabricError, "give both the same transport"):
                one.add_peer(other.address())


class RefusalTest(parameterized.TestCase):
    @parameterized.parameters(
        (dict(domain="tcp"), "domain='tcp': must be 'local', 'efa' or 'connectx'"),
        (dict(domain="local", provider="tcp"), "provider='tcp': only domain='efa' has providers"),
        (dict(domain="efa", provider=""), "provider=''"),
    )
    def test_bad_arguments(self, options, message):
        with (
            engine.TransferEngine() as fabric,
            self.assertRaisesRegex(errors.InvalidArgument, message),
        ):
            fabric.add_group(**options)
        mesh = jax.make_mesh((1,), ("ep",))
        with self.assertRaisesRegex(ValueError, message):
            jf.Fabric(mesh, **options)

    def test_nothing_falls_back(self):
        """Where there is no such provider, the error says what there is."""
        mesh = jax.make_mesh((1,), ("ep",))
        with self.assertRaisesRegex(errors.FabricError, "'no_such_provider'.*Found: .*tcp"):
            jf.Fabric(mesh, domain="efa", provider="no_such_provider")

    def test_a_fake_device_that_is_not_built_says_how(self):
        with mock.patch.object(fake_srd, "_TARGET", "csrc/none/libnone.so"):
            for act in (fake_srd.load, lambda: main.main(["demo", "moe", "--provider", "fakesrd"])):
                errors_of = contextlib.redirect_stderr(io.StringIO())
                with errors_of as text, self.assertRaises((FileNotFoundError, SystemExit)) as got:
                    act()
                said = f"{got.exception} {text.getvalue()}"
                self.assertIn("bazel build --config=ci //csrc/none:libnone.so", said)

    def test_a_fake_device_without_libfabric_says_what_to_install(self):
        with (
            mock.patch.object(importlib.metadata, "files", return_value=[]),
            self.assertRaisesRegex(FileNotFoundError, "pip install mpich=="),
        ):
            fake_srd.find()

    def test_another_libfabric_is_not_replaced(self):
        with engine.TransferEngine() as fabric:
            fabric.add_group("one", domain="efa", provider="tcp")
        with self.assertRaisesRegex(RuntimeError, "opened another libfabric already"):
            fake_srd.load()


if __name__ == "__main__":
    absltest.main()
