"""jax_fabric.memory: what is memory, who may use it, how descriptors travel."""

import gc
import pickle
import weakref

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from engine_testing import PairTest

from jax_fabric import errors, memory

REMOTE_WRITE = memory.Access.REMOTE_WRITE


class BufferTest(PairTest):
    @parameterized.named_parameters(
        ("numpy", lambda: np.arange(64, dtype=np.uint8)),
        ("fortran_order", lambda: np.asfortranarray(np.arange(64, dtype=np.uint8).reshape(8, 8))),
        ("bytes", lambda: bytes(range(64))),
        ("bytearray", lambda: bytearray(range(64))),
        ("memoryview", lambda: memoryview(np.arange(16, dtype=np.float32))[4:]),
        ("read_only", lambda: np.frombuffer(bytes(range(64)), np.uint8)),
        ("jax", lambda: jnp.arange(64, dtype=jnp.float32)),
        ("jax_bfloat16", lambda: jnp.arange(64, dtype=jnp.bfloat16)),
        ("allocated", lambda: memory.allocate((4, 4), np.float64)),
    )
    def test_sources(self, make):
        buffer = make()
        source = self.pair.source(buffer)
        expected = (
            np.asarray(buffer).tobytes(order="A")
            if not isinstance(buffer, (bytes, bytearray))
            else bytes(buffer)
        )
        self.assertEqual(source.nbytes, len(expected))
        target = self.pair.target(len(expected))
        self.pair.a.write(self.pair.to_b, source, target.descriptor).wait()
        self.assertEqual(target.array.tobytes(), expected)

    @parameterized.named_parameters(
        ("numpy", lambda: np.zeros(64, np.uint8)),
        ("bytearray", lambda: bytearray(64)),
        ("allocated", lambda: memory.allocate(64)),
    )
    def test_targets(self, make):
        target = self.pair.b.register(make(), REMOTE_WRITE)
        source = self.pair.source(np.arange(64, dtype=np.uint8))
        self.pair.a.write(self.pair.to_b, source, target.descriptor).wait()
        self.assertEqual(target.array.tobytes(), bytes(range(64)))

    @parameterized.named_parameters(
        ("bytes", lambda: b"x"),
        ("jax", lambda: jnp.zeros(4)),
        ("read_only", lambda: np.broadcast_to(np.uint8(1), 1)),
    )
    def test_read_only_memory_is_no_target(self, make):
        with self.assertRaisesRegex(errors.InvalidArgument, "read-only.*Access.LOCAL"):
            self.pair.b.register(make(), REMOTE_WRITE)

    @parameterized.named_parameters(
        ("strided", lambda: np.zeros(8)[::2], "not contiguous"),
        ("transposed_part", lambda: np.zeros((4, 4))[:2].T[::2], "not contiguous"),
        ("memoryview", lambda: memoryview(b"12345678")[::2], "not contiguous"),
        ("empty", lambda: np.zeros(0), "no bytes"),
        ("empty_bytes", lambda: b"", "no bytes"),
        ("objects", lambda: np.array([None]), "Python objects"),
        ("a_list", lambda: [1, 2], "list is no memory"),
        ("a_number", lambda: 3, "int is no memory"),
        (
            "sharded",
            lambda: jax.device_put(
                jnp.zeros(8), jax.NamedSharding(jax.make_mesh((8,), "x"), jax.P("x"))
            ),
            "one CPU device.*addressable_shards",
        ),
    )
    def test_refused(self, make, message):
        with self.assertRaisesRegex(errors.InvalidArgument, message):
            self.pair.a.register(make())

    def test_deleted_and_traced_arrays_are_refused(self):
        array = jnp.zeros(4)
        array.delete()
        with self.assertRaisesRegex(errors.InvalidArgument, "deleted"):
            self.pair.a.register(array)
        with self.assertRaisesRegex(errors.InvalidArgument, "traced"):
            jax.jit(lambda x: self.pair.a.register(x) and x)(jnp.zeros(4))

    def test_access_must_be_one(self):
        with self.assertRaisesRegex(errors.InvalidArgument, "access='remote_write'"):
            self.pair.a.register(np.zeros(1), "remote_write")

    def test_a_region_keeps_its_buffer(self):
        array = np.zeros(100, np.uint8)
        alive = weakref.ref(array)
        region = self.pair.b.register(array, REMOTE_WRITE)
        del array
        gc.collect()
        self.assertIsNotNone(alive())
        region.close()
        region.close()
        self.assertTrue(region.closed)
        self.assertIsNone(alive())
        with self.assertRaises(errors.InvalidArgument):
            _ = region.array
        with self.assertRaises(errors.FabricError):
            _ = region.descriptor

    def test_a_dropped_region_is_deregistered(self):
        array = np.zeros(100, np.uint8)
        alive = weakref.ref(array)
        region = self.pair.b.register(array, REMOTE_WRITE)
        descriptor = region.descriptor
        source = self.pair.source(np.zeros(100, np.uint8))
        del array, region
        gc.collect()
        self.assertIsNone(alive())
        transfer = self.pair.a.write(self.pair.to_b, source, descriptor)
        with self.assertRaisesRegex(errors.FabricError, "not .*registered at"):
            transfer.wait()

    def test_more_regions_than_fit_at_once_when_dropped(self):
        for _ in range(10_000):
            self.pair.a.register(np.zeros(1))
        kept = []
        with self.assertRaisesRegex(errors.FabricError, "registered") as caught:
            kept.extend(self.pair.a.register(np.zeros(1)) for _ in range(10_000))
        self.assertEqual(caught.exception.code, "RESOURCE_EXHAUSTED")

    def test_local_memory_has_no_descriptor(self):
        with self.assertRaisesRegex(errors.FabricError, "local use only") as caught:
            _ = self.pair.source(np.zeros(4)).descriptor
        self.assertEqual(caught.exception.code, "PERMISSION_DENIED")

    @parameterized.parameters(
        (0, np.uint8), (-1, np.uint8), ((2, 0), np.uint8), (1.5, np.uint8), (2**50, np.uint8)
    )
    def test_allocate_refuses_shapes(self, shape, dtype):
        with self.assertRaisesRegex(errors.InvalidArgument, "shape="):
            memory.allocate(shape, dtype)

    @parameterized.parameters(object, "nonsense", "V0")
    def test_allocate_refuses_dtypes(self, dtype):
        with self.assertRaisesRegex(errors.InvalidArgument, "dtype="):
            memory.allocate(4, dtype)

    def test_allocated_memory_outlives_everything_but_its_views(self):
        view = memory.allocate((2, 3), np.int32)[1]
        gc.collect()
        view += 5
        self.assertEqual(view.tolist(), [5, 5, 5])


class DescriptorTest(PairTest):
    def test_travels_as_bytes(self):
        target = self.pair.target(4096)
        descriptor = target.descriptor
        for copy in (
            memory.RemoteMemory(bytes(descriptor)),
            memory.RemoteMemory(bytearray(bytes(descriptor))),
            pickle.loads(pickle.dumps(descriptor)),
        ):
            self.assertEqual(copy, descriptor)
            self.assertEqual(hash(copy), hash(descriptor))
            self.assertEqual((copy.nbytes, copy.nic_count), (4096, 1))
        self.assertNotEqual(descriptor, self.pair.target(4096).descriptor)
        self.assertIn(bytes(descriptor), pickle.dumps(descriptor))

    def test_every_damage_is_noticed(self):
        good = bytes(self.pair.target(64).descriptor)
        for position in range(len(good)):
            for flip in (0x01, 0x80, 0xFF):
                bad = bytearray(good)
                bad[position] ^= flip
                with self.assertRaises(errors.FabricError):
                    memory.RemoteMemory(bad)
                with self.assertRaises(errors.FabricError):
                    pickle.loads(pickle.dumps(memory.RemoteMemory(good)).replace(good, bytes(bad)))
        for length in range(len(good)):
            with self.assertRaises(errors.FabricError):
                memory.RemoteMemory(good[:length])
        with self.assertRaises(errors.CorruptData):
            memory.RemoteMemory(good + b"\0")
        with self.assertRaisesRegex(errors.InvalidArgument, "descriptor: str is not bytes-like"):
            memory.RemoteMemory("text")

    def test_damaged_addresses(self):
        good = self.pair.b.address()
        for position in range(len(good)):
            bad = bytearray(good)
            bad[position] ^= 0x40
            with self.assertRaises(errors.FabricError):
                self.pair.a.add_peer(bad)

    def test_of_another_peer(self):
        other = self.pair.engine.add_group("c").register(np.zeros(8, np.uint8), REMOTE_WRITE)
        source = self.pair.source(np.zeros(8, np.uint8))
        with self.assertRaisesRegex(errors.FabricError, "exchange descriptors again"):
            self.pair.a.write(self.pair.to_b, source, other.descriptor)


if __name__ == "__main__":
    absltest.main()
