"""What is said where there is no RDMA device; scripts/soft_roce has some (docs/connectx.md)."""

import os
from unittest import mock

import jax
from absl.testing import absltest, parameterized

import jax_fabric as jf
from jax_fabric import engine, errors


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
