"""jax_fabric.engine and jax_fabric.memory: every call, every bad argument, every end."""

import contextlib
import gc
import multiprocessing
import pickle
import queue
import re
import signal
import sys
import threading
import time
import weakref
from pathlib import Path

import engine_programs as programs
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from jax_fabric import engine, errors, memory

ROOT = Path(__file__).parent.parent
LOCAL, REMOTE_WRITE = memory.Access.LOCAL, memory.Access.REMOTE_WRITE


class Pair:
    """Two groups of one engine that know each other."""

    def __init__(self, **options):
        self.engine = engine.TransferEngine(timeout_s=20, **options)
        self.regions = []
        self.a, self.b = self.engine.add_group("a"), self.engine.add_group("b")
        self.to_b = self.a.add_peer(self.b.address())
        self.to_a = self.b.add_peer(self.a.address())
        self.a.wait_peers([self.to_b])

    def source(self, array):
        return self.a.register(array)

    def target(self, nbytes):
        region = self.b.register(np.zeros(nbytes, np.uint8), REMOTE_WRITE)
        self.regions.append(region)  # a dropped one is deregistered
        return region

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.engine.close()


@contextlib.contextmanager
def unraisable():
    """What callbacks raised meanwhile."""
    found = queue.Queue()
    before, sys.unraisablehook = sys.unraisablehook, lambda args: found.put(args.exc_value)
    try:
        yield found
    finally:
        sys.unraisablehook = before


class PairTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.pair = self.enterContext(Pair())


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


class WriteTest(PairTest):
    def test_offsets_and_lengths(self):
        source = self.pair.source(np.arange(256, dtype=np.uint8))
        target = self.pair.target(256)
        write = self.pair.a.write
        to_b, remote = self.pair.to_b, target.descriptor
        write(to_b, source, remote, source_offset=10, target_offset=100, nbytes=50).wait()
        expected = np.zeros(256, np.uint8)
        expected[100:150] = np.arange(10, 60)
        np.testing.assert_array_equal(target.array, expected)
        write(to_b, source, remote, source_offset=250).wait()
        expected[:6] = np.arange(250, 256)
        np.testing.assert_array_equal(target.array, expected)

    @parameterized.parameters(1 << 20, (1 << 24) + 13)
    def test_large(self, nbytes):
        data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
        source, target = self.pair.source(data), self.pair.target(nbytes)
        (immediate,) = self.pair.b.allocate_immediates(1)
        count = self.pair.b.write_immediates(self.pair.to_a, nbytes)
        self.pair.a.write(self.pair.to_b, source, target.descriptor, immediate=immediate)
        self.pair.b.expect(immediate, count).wait()
        np.testing.assert_array_equal(target.array, data)

    def test_zero_length(self):
        target = self.pair.target(8)
        (immediate,) = self.pair.b.allocate_immediates(1)
        source = self.pair.source(np.ones(8, np.uint8))
        write, remote = self.pair.a.write, target.descriptor
        write(self.pair.to_b, None, remote, immediate=immediate).wait()
        write(self.pair.to_b, source, remote, source_offset=8, immediate=immediate).wait()
        write(self.pair.to_b, source, remote, target_offset=8, nbytes=0, immediate=immediate).wait()
        self.pair.b.expect(immediate, 3).wait()
        self.assertEqual(target.array.sum(), 0)

    @parameterized.parameters(
        (dict(source_offset=9), "source_offset=9.*outside"),
        (dict(source_offset=-1), "source_offset=-1"),
        (dict(source_offset=8, nbytes=1), "outside of the source"),
        (dict(target_offset=1), "outside of the target"),
        (dict(target_offset=-1), "target_offset=-1"),
        (dict(target_offset=2**64 - 4), "outside of the target"),
        (dict(nbytes=9), "outside of the"),
        (dict(nbytes="8"), "nbytes='8'"),
        (dict(nbytes=2**64), "nbytes="),
        (dict(max_nbytes=7), "max_length 7"),
        (dict(max_nbytes=-7), "max_nbytes=-7"),
        (dict(immediate=-1), "immediate=-1"),
        (dict(immediate=2**32), "immediate="),
        (dict(immediate=0.5), "immediate=0.5"),
        (dict(timeout_s=-1), "timeout_s=-1"),
        (dict(timeout_s=float("nan")), "timeout_s=nan"),
        (dict(timeout_s="soon"), "timeout_s='soon'"),
        (dict(peer=0), "peer=0: must be a .*Peer"),
        (dict(peer=engine.Peer(0, "b")), "not of group 'a'"),
        (dict(source=np.zeros(8)), "source=.*must be a .*MemoryRegion"),
        (dict(target=b""), "target=b''.*RemoteMemory"),
        (dict(source=None, nbytes=3), "without a source"),
    )
    def test_bad_arguments(self, change, message):
        arguments = dict(
            peer=self.pair.to_b,
            source=self.pair.source(np.zeros(8, np.uint8)),
            target=self.pair.target(8).descriptor,
        )
        with self.assertRaisesRegex(errors.InvalidArgument, message) as caught:
            self.pair.a.write(**(arguments | change))
        self.assertIn(caught.exception.code, ("INVALID_ARGUMENT", "OUT_OF_RANGE"))

    def test_source_of_another_group(self):
        source = self.pair.b.register(np.zeros(8, np.uint8))
        with self.assertRaisesRegex(errors.InvalidArgument, "registered with group 'b'"):
            self.pair.a.write(self.pair.to_b, source, self.pair.target(8).descriptor)

    def test_closed_source(self):
        source = self.pair.source(np.zeros(8, np.uint8))
        source.close()
        with self.assertRaisesRegex(errors.FabricError, "not registered"):
            self.pair.a.write(self.pair.to_b, source, self.pair.target(8).descriptor)

    def test_a_write_keeps_its_source_until_it_has_ended(self):
        target = self.pair.target(1 << 26)
        array = np.full(1 << 26, 3, np.uint8)
        alive = weakref.ref(array)
        transfer = self.pair.a.write(self.pair.to_b, self.pair.source(array), target.descriptor)
        del array
        transfer.wait()
        self.assertTrue(transfer.drained())
        self.assertTrue((target.array == 3).all())
        deadline = time.monotonic() + 10
        while alive() is not None and time.monotonic() < deadline:
            time.sleep(0.001)
        self.assertIsNone(alive())

    def test_a_source_in_use_is_not_closed(self):
        unknown = self.pair.engine.add_group("late")
        address = unknown.address()
        peer = self.pair.a.add_peer(address)
        target = unknown.register(np.zeros(1 << 26, np.uint8), REMOTE_WRITE)
        source = self.pair.source(np.zeros(1 << 26, np.uint8))
        transfer = self.pair.a.write(peer, source, target.descriptor)
        if not transfer.done():
            with self.assertRaisesRegex(errors.FabricError, "may still read"):
                source.close()
        transfer.wait()
        source.close()

    def test_thousands_outstanding(self):
        source = self.pair.source(np.arange(256, dtype=np.uint8))
        target = self.pair.target(256)
        (immediate,) = self.pair.b.allocate_immediates(1)
        remote = target.descriptor
        transfers = [
            self.pair.a.write(
                self.pair.to_b,
                source,
                remote,
                source_offset=i % 256,
                target_offset=i % 256,
                nbytes=1,
                immediate=immediate,
            )
            for i in range(20_000)  # more handles than the engine has requests
        ]
        for transfer in transfers:
            transfer.wait()
        self.pair.b.expect(immediate, 20_000).wait()
        np.testing.assert_array_equal(target.array, source.array)

    def test_cancel_and_result(self):
        target = self.pair.target(1 << 26)
        source = self.pair.source(np.zeros(1 << 26, np.uint8))
        transfers = [
            self.pair.a.write(self.pair.to_b, source, target.descriptor) for _ in range(20)
        ]
        transfers[-1].cancel()
        if not transfers[-1].done():
            with self.assertRaisesRegex(errors.DeadlineExceeded, "has not ended"):
                transfers[-1].result()
        for transfer in transfers[:-1]:
            transfer.wait()
            transfer.result()
            transfer.cancel()
            self.assertIsNone(transfer.error())
        with contextlib.suppress(errors.Cancelled):
            transfers[-1].wait()
        transfers[-1].wait_drained()
        self.assertTrue(transfers[-1].done())
        self.assertRegex(repr(transfers[0]), "Transfer: the write: done")

    def test_deadline_names_peer_and_nic(self):
        target = self.pair.target(1 << 28)
        source = self.pair.source(np.zeros(1 << 28, np.uint8))
        transfer = self.pair.a.write(self.pair.to_b, source, target.descriptor, timeout_s=0.001)
        with self.assertRaises(TimeoutError) as caught:
            transfer.wait()
        error = caught.exception
        self.assertIsInstance(error, errors.DeadlineExceeded)
        self.assertIn("peer 0 'b' over a", str(error))
        self.assertEqual((error.peer, error.nic), ("peer 0 'b'", "a"))
        transfer.wait_drained()
        self.assertTrue(transfer.drained())
        self.assertIsInstance(transfer.error(), errors.DeadlineExceeded)

    def test_threads(self):
        source = self.pair.source(np.zeros(64, np.uint8))
        remote = self.pair.target(64).descriptor
        failures = []

        def work():
            try:
                for _ in range(300):
                    self.pair.a.write(self.pair.to_b, source, remote).wait()
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])


class PagesTest(PairTest):
    def setUp(self):
        super().setUp()
        self.source = self.pair.source(np.arange(64 * 16, dtype=np.uint16))
        self.target = self.pair.target(64 * 32)
        (self.immediate,) = self.pair.b.allocate_immediates(1)

    def write(self, source_pages, target_pages, page_nbytes=32, **options):
        return self.pair.a.write_pages(
            self.pair.to_b,
            self.source,
            source_pages,
            self.target.descriptor,
            target_pages,
            page_nbytes=page_nbytes,
            **options,
        )

    @parameterized.parameters(np.int64, np.uint64, np.uint8, np.int16)
    def test_a_permutation(self, dtype):
        rng = np.random.default_rng(1)
        source, target = (rng.permutation(64).astype(dtype) for _ in range(2))
        self.write(source, target, immediate=self.immediate).wait()
        self.pair.b.expect(self.immediate, 64).wait()
        found = self.target.array.view(np.uint16).reshape(64, 16)
        np.testing.assert_array_equal(found[target], self.source.array.reshape(64, 16)[source])

    def test_strides_offsets_and_lists(self):
        self.write(engine.Pages([1, 0, 2], 64, 2), engine.Pages([2, 4, 6], 100, 8), 10).wait()
        expected = np.zeros(64 * 32, np.uint8)
        data = self.source.array.view(np.uint8)
        for source, target in ((66, 208), (2, 408), (130, 608)):
            expected[target : target + 10] = data[source : source + 10]
        np.testing.assert_array_equal(self.target.array, expected)

    def test_pages_without_bytes_bring_immediates(self):
        self.write([0, 64], [0, 64], 0, immediate=self.immediate).wait()
        self.pair.b.expect(self.immediate, 2).wait()

    def test_many_pages(self):
        pages = np.random.default_rng(2).integers(0, 64, 100_000)
        self.write(pages, pages, immediate=self.immediate).wait()
        self.pair.b.expect(self.immediate, 100_000).wait()

    @parameterized.parameters(
        ([64], [0], "source page 0 .index 64"),
        ([0, 1], [1, 64], "target page 1 .index 64"),
        ([-1], [0], "source_pages: index -1"),
        ([0], [0.0], "target_pages: indices .*float64"),
        ([0], [[0]], "target_pages: indices of shape"),
        ([], [], "source_pages: .*at least one"),
        ([0, 1], [0], "2 source pages and 1 target pages"),
        (engine.Pages([1], 2**63), [0], "outside"),
        (engine.Pages([0], offset=2**64 - 1), [0], "outside"),
        (engine.Pages([0], stride=-1), [0], "source_pages.stride=-1"),
        (["x"], [0], "source_pages"),
    )
    def test_bad_pages(self, source, target, message):
        with self.assertRaisesRegex(errors.InvalidArgument, message):
            self.write(source, target)

    @parameterized.parameters(-1, 1.5, None)
    def test_bad_length(self, page_nbytes):
        with self.assertRaisesRegex(errors.InvalidArgument, "page_nbytes="):
            self.write([0], [0], page_nbytes)


class ImmediateTest(PairTest):
    def test_before_and_after_arrival_and_carry_over(self):
        b = self.pair.b
        target = self.pair.target(8).descriptor
        first, second = b.allocate_immediates(2)
        ring = [engine.BarrierTarget(self.pair.to_b, target, first)] * 3
        early = b.expect(first, 2)
        self.assertFalse(early.done())
        self.pair.a.barrier(ring).wait()
        early.wait()
        b.expect(first, 1).wait()  # carried over
        self.assertFalse(b.expect(second, 1).done())
        b.expect(first, 0).wait()

    def test_one_expectation_an_id(self):
        (immediate,) = self.pair.b.allocate_immediates(1)
        expectation = self.pair.b.expect(immediate)
        self.assertEqual((expectation.immediate, expectation.count), (immediate, 1))
        with self.assertRaisesRegex(errors.FabricError, "expected already") as caught:
            self.pair.b.expect(immediate)
        self.assertEqual(caught.exception.code, "ALREADY_EXISTS")
        expectation.cancel()
        with self.assertRaises(errors.Cancelled):
            expectation.wait()
        expectation.cancel()
        self.pair.b.release_immediates(range(immediate, immediate + 1))

    def test_deadlines(self):
        (immediate,) = self.pair.b.allocate_immediates(1)
        expectation = self.pair.b.expect(immediate, 7, timeout_s=0.2)
        with self.assertRaisesRegex(errors.DeadlineExceeded, "has not ended within 0.01 s"):
            expectation.wait(0.01)
        with self.assertRaisesRegex(errors.DeadlineExceeded, "came 0 times of 7"):
            expectation.wait()

    def test_strays(self):
        target = self.pair.target(8).descriptor
        self.pair.a.barrier([engine.BarrierTarget(self.pair.to_b, target, 12345)]).wait()
        deadline = time.monotonic() + 10
        while self.pair.b.stray_immediates == 0 and time.monotonic() < deadline:
            time.sleep(0.001)
        self.assertEqual(self.pair.b.stray_immediates, 1)

    def test_bad_arguments(self):
        b = self.pair.b
        for count in (0, -1, 1.5, 2**32):
            with self.assertRaisesRegex(errors.InvalidArgument, "count="):
                b.allocate_immediates(count)
        with self.assertRaises(errors.FabricError) as caught:
            b.allocate_immediates(2**32 - 1)
        self.assertEqual(caught.exception.code, "RESOURCE_EXHAUSTED")
        with self.assertRaises(errors.FabricError) as caught:
            b.expect(999)
        self.assertEqual(caught.exception.code, "NOT_FOUND")
        for value in (-1, 2**32, "x"):
            with self.assertRaisesRegex(errors.InvalidArgument, "immediate="):
                b.expect(value)
            with self.assertRaisesRegex(errors.InvalidArgument, "count="):
                b.expect(0, value)
        for value in (5, range(0), range(0, 4, 2)):
            with self.assertRaisesRegex(errors.InvalidArgument, "immediates="):
                b.release_immediates(value)
        with self.assertRaises(errors.FabricError):
            b.release_immediates(range(900, 901))
        with self.assertRaisesRegex(errors.InvalidArgument, "max_nbytes="):
            b.write_immediates(self.pair.to_a, -1)
        self.assertEqual(b.scatter_immediates(self.pair.to_a, 1 << 20), 1)


class ScatterTest(PairTest):
    def entries(self, target, **changes):
        (self.immediate,) = self.pair.b.allocate_immediates(1)
        source = self.pair.source(np.arange(64, dtype=np.uint8))
        return [
            engine.ScatterEntry(
                self.pair.to_b,
                target.descriptor,
                self.immediate,
                source,
                **(dict(source_offset=8 * i, target_offset=56 - 8 * i, nbytes=8) | changes),
            )
            for i in range(8)
        ]

    def test_scatter(self):
        target = self.pair.target(64)
        self.pair.a.scatter(self.entries(target)).wait()
        self.pair.b.expect(self.immediate, 8).wait()
        expected = np.arange(64).reshape(8, 8)[::-1].ravel()
        np.testing.assert_array_equal(target.array, expected)

    def test_prepared_scatter_with_other_lengths(self):
        target = self.pair.target(64)
        scatter = self.pair.a.prepare_scatter(self.entries(target, max_nbytes=8))
        expected = np.arange(64).reshape(8, 8)[::-1]
        for length in (8, 4, 0):
            target.array[:] = 255
            for i in range(8):
                scatter.set_nbytes(i, length)
            scatter.post().wait()
            self.pair.b.expect(self.immediate, 8).wait()
            found = target.array.reshape(8, 8)
            np.testing.assert_array_equal(found[:, :length], expected[:, :length])
            self.assertTrue((found[:, length:] == 255).all())
        with self.assertRaisesRegex(errors.InvalidArgument, "entry=8"):
            scatter.set_nbytes(8, 1)
        scatter.set_nbytes(0, 1000)
        with self.assertRaisesRegex(errors.InvalidArgument, "entry 0 is 1000 bytes"):
            scatter.post()

    def test_a_post_keeps_what_it_uses(self):
        target = self.pair.target(64)
        pending = self.pair.a.prepare_scatter(self.entries(target)).post()
        gc.collect()
        pending.wait()
        self.pair.b.expect(self.immediate, 8).wait()

    def test_bad_arguments(self):
        target = self.pair.target(64)
        with self.assertRaisesRegex(errors.InvalidArgument, "outside of the target"):
            self.pair.a.scatter(self.entries(target, target_offset=60))
        with self.assertRaisesRegex(errors.InvalidArgument, "outside of the source"):
            self.pair.a.prepare_scatter(self.entries(target, source_offset=60))
        with self.assertRaisesRegex(errors.InvalidArgument, "entries=1"):
            self.pair.a.scatter([1])
        with self.assertRaisesRegex(errors.InvalidArgument, "targets=1"):
            self.pair.a.barrier([1])
        self.pair.a.scatter([]).wait()


class MessageTest(PairTest):
    def test_messages_come_with_their_peer(self):
        inbox = queue.Queue()
        self.pair.b.receive_messages(lambda *message: inbox.put(message), buffers=4)
        sent = [bytes([i]) * (i * 16) for i in range(200)]
        for message in sent:
            self.pair.a.send(self.pair.to_b, message)
        found = [inbox.get(timeout=10) for _ in sent]
        self.assertEqual({peer for peer, _ in found}, {self.pair.to_a})
        self.assertCountEqual([message for _, message in found], sent)

    def test_of_a_stranger(self):
        inbox = queue.Queue()
        group = self.pair.engine.add_group("c")
        group.receive_messages(lambda *message: inbox.put(message))
        self.pair.a.send(self.pair.a.add_peer(group.address()), bytearray(b"x"))
        self.assertEqual(inbox.get(timeout=10), (None, b"x"))

    def test_bad_arguments(self):
        receive, send = self.pair.b.receive_messages, self.pair.a.send
        with self.assertRaisesRegex(errors.InvalidArgument, "callback=None"):
            receive(None)
        for options in (dict(buffers=0), dict(buffers=2**32 - 1), dict(max_nbytes=1 << 30)):
            with self.assertRaisesRegex(errors.InvalidArgument, "receive"):
                receive(print, **options)
        receive(lambda *_: None)
        with self.assertRaisesRegex(errors.FabricError, "being received already"):
            receive(lambda *_: None)
        with self.assertRaisesRegex(errors.InvalidArgument, "a message has at most"):
            send(self.pair.to_b, bytes(1 << 20))
        with self.assertRaisesRegex(errors.InvalidArgument, "message: str is not bytes-like"):
            send(self.pair.to_b, "text")


class CallbackTest(PairTest):
    def test_order_and_argument(self):
        found = queue.Queue()
        (immediate,) = self.pair.b.allocate_immediates(1)
        expectation = self.pair.b.expect(immediate)
        for i in range(5):
            expectation.add_done_callback(lambda ended, i=i: found.put((i, ended)))
        target = self.pair.target(8).descriptor
        self.pair.a.write(self.pair.to_b, None, target, immediate=immediate)
        self.assertEqual(
            [found.get(timeout=10) for _ in range(5)], [(i, expectation) for i in range(5)]
        )
        expectation.add_done_callback(lambda ended: found.put(threading.current_thread()))
        self.assertIsNot(found.get(timeout=10), threading.current_thread())

    def test_what_they_raise_is_reported(self):
        target = self.pair.target(8).descriptor
        with unraisable() as found:
            transfer = self.pair.a.write(self.pair.to_b, None, target)
            transfer.add_done_callback(lambda ended: 1 / 0)
            self.assertIsInstance(found.get(timeout=10), ZeroDivisionError)
            self.pair.b.receive_messages(lambda peer, message: sys.exit(message))
            self.pair.a.send(self.pair.to_b, b"1")
            self.assertIsInstance(found.get(timeout=10), SystemExit)
            with self.pair.engine.watch(lambda old, new: [][new]) as watcher:
                watcher.store(1)
                self.assertIsInstance(found.get(timeout=10), IndexError)
        self.pair.a.write(self.pair.to_b, None, target).wait()

    def test_they_may_use_the_engine(self):
        found = queue.Queue()
        target = self.pair.target(8).descriptor

        def again(ended):
            other = self.pair.a.write(self.pair.to_b, None, target)
            other.wait()
            found.put(other.error())
            try:
                self.pair.engine.close()
            except errors.FabricError as error:
                found.put(str(error))

        self.pair.a.write(self.pair.to_b, None, target).add_done_callback(again)
        self.assertIsNone(found.get(timeout=10))
        self.assertIn("own callbacks", found.get(timeout=10))

    def test_must_be_callable(self):
        transfer = self.pair.a.write(self.pair.to_b, None, self.pair.target(8).descriptor)
        with self.assertRaisesRegex(errors.InvalidArgument, "callback=3"):
            transfer.add_done_callback(3)


class WatcherTest(PairTest):
    def test_old_and_new(self):
        found = queue.Queue()
        watcher = self.pair.engine.watch(lambda *values: found.put(values), initial=2**64 - 1)
        self.assertEqual(watcher.load(), 2**64 - 1)
        watcher.store(5)
        self.assertEqual(found.get(timeout=10), (2**64 - 1, 5))
        watcher.word[0] = 6
        self.assertEqual(found.get(timeout=10), (5, 6))
        self.assertEqual((watcher.word.dtype, watcher.word.shape), (np.uint64, (1,)))
        watcher.close()
        watcher.close()
        watcher.store(7)
        time.sleep(0.01)
        self.assertTrue(found.empty())
        word = watcher.word
        del watcher
        gc.collect()
        self.assertEqual(word[0], 7)

    def test_a_peer_can_write_it(self):
        found = queue.Queue()
        with self.pair.engine.watch(lambda *values: found.put(values)) as watcher:
            region = self.pair.b.register(watcher.word, REMOTE_WRITE)
            source = self.pair.source(np.array([9], np.uint64))
            self.pair.a.write(self.pair.to_b, source, region.descriptor)
            self.assertEqual(found.get(timeout=10), (0, 9))

    def test_close_waits_for_its_callback_within_bounds(self):
        entered, go_on = threading.Event(), threading.Event()

        def callback(old, new):
            entered.set()
            go_on.wait(20)

        watcher = self.pair.engine.watch(callback)
        watcher.store(1)
        self.assertTrue(entered.wait(10))
        with self.assertRaisesRegex(errors.DeadlineExceeded, "callback has not returned"):
            watcher.close(timeout_s=0.05)
        go_on.set()
        watcher.close()

    def test_bad_arguments(self):
        with self.assertRaisesRegex(errors.InvalidArgument, "callback=None"):
            self.pair.engine.watch(None)
        for value in (-1, 2**64, 0.5):
            with self.assertRaisesRegex(errors.InvalidArgument, "initial="):
                self.pair.engine.watch(print, initial=value)
            with self.assertRaisesRegex(errors.InvalidArgument, "value="):
                self.pair.engine.watch(print).store(value)


class EngineTest(parameterized.TestCase):
    @parameterized.parameters(
        dict(worker_threads=0), dict(worker_threads="2"), dict(timeout_s=0), dict(timeout_s=1e10)
    )
    def test_bad_arguments(self, **options):
        (name,) = options
        with self.assertRaisesRegex(errors.InvalidArgument, f"{name}="):
            engine.TransferEngine(**options)

    def test_bad_groups(self):
        with engine.TransferEngine() as fabric:
            for name in ("", 5):
                with self.assertRaisesRegex(errors.InvalidArgument, "name="):
                    fabric.add_group(name)
            with self.assertRaisesRegex(errors.InvalidArgument, "timeout_s=0"):
                fabric.add_group("a", timeout_s=0)
            with self.assertRaisesRegex(errors.InvalidArgument, "timeout_s="):
                fabric.close(timeout_s=-1)
            self.assertEqual(fabric.add_group().nic_count, 1)

    def test_peers(self):
        with Pair(worker_threads=2) as pair:
            self.assertIs(pair.a.add_peer(pair.b.address()), pair.to_b)
            self.assertEqual((pair.to_b.name, pair.to_a.name), ("b", "a"))
            with self.assertRaisesRegex(errors.InvalidArgument, "address: int is not bytes-like"):
                pair.a.add_peer(5)
            with self.assertRaisesRegex(errors.InvalidArgument, "not of group 'b'"):
                pair.b.wait_peers([pair.to_b])
            target = pair.target(8).descriptor
            pair.a.remove_peer(pair.to_b)
            pair.a.remove_peer(pair.to_b)
            with self.assertRaisesRegex(errors.PeerUnavailable, "peer 0 'b'.*removed") as caught:
                pair.a.write(pair.to_b, None, target).wait()
            self.assertEqual(caught.exception.peer, "peer 0 'b'")
            with self.assertRaisesRegex(errors.PeerUnavailable, "removed") as caught:
                pair.a.wait_peers([pair.to_b], timeout_s=1)
            self.assertEqual(caught.exception.peer, "peer 0 'b'")

    def test_after_close(self):
        pair = Pair()
        target, source = pair.target(8), pair.source(np.zeros(8, np.uint8))
        (immediate,) = pair.b.allocate_immediates(1)
        pair.engine.close()
        pair.engine.close()
        for use in (
            lambda: pair.a.write(pair.to_b, source, target.descriptor),
            lambda: pair.a.write_pages(
                pair.to_b, source, [0], target.descriptor, [0], page_nbytes=8
            ),
            lambda: pair.a.scatter([]),
            lambda: pair.a.barrier([]),
            lambda: pair.a.prepare_scatter([]).post(),
            lambda: pair.a.send(pair.to_b, b""),
            lambda: pair.b.receive_messages(print),
            lambda: pair.b.expect(immediate),
            lambda: pair.a.add_peer(pair.b.address()),
            lambda: pair.engine.add_group(),
            lambda: pair.engine.watch(print),
        ):
            with self.assertRaises(errors.Cancelled):
                use()
        source.close()
        target.close()

    def test_close_ends_waits_of_other_threads(self):
        pair = Pair()
        (immediate,) = pair.b.allocate_immediates(1)
        expectation = pair.b.expect(immediate)
        found = queue.Queue()
        ended = queue.Queue()
        expectation.add_done_callback(ended.put)

        def wait():
            try:
                expectation.wait()
            except errors.FabricError as error:
                found.put(error)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)
        pair.engine.close()
        self.assertIsInstance(found.get(timeout=10), errors.Cancelled)
        self.assertIs(ended.get(timeout=10), expectation)
        thread.join()

    def test_close_does_not_wait_for_a_stuck_callback_for_ever(self):
        pair = Pair()
        entered, go_on = threading.Event(), threading.Event()
        (immediate,) = pair.b.allocate_immediates(1)
        stuck = pair.b.expect(immediate, 0)
        stuck.add_done_callback(lambda ended: (entered.set(), go_on.wait(20)))
        self.assertTrue(entered.wait(10))
        with self.assertRaisesRegex(errors.DeadlineExceeded, "a task blocks"):
            pair.engine.close(timeout_s=0.05)
        go_on.set()
        pair.engine.close()

    def test_close_breaks_cycles(self):
        pair = Pair()
        alive = weakref.ref(pair)
        pair.b.receive_messages(lambda peer, message, keep=pair: None)
        watcher = pair.engine.watch(lambda old, new, keep=pair: None)
        pair.engine.close()
        del pair
        gc.collect()
        self.assertIsNone(alive())
        del watcher

    def test_ctrl_c_ends_a_wait(self):
        with Pair() as pair:
            (immediate,) = pair.b.allocate_immediates(1)
            expectation = pair.b.expect(immediate)
            timer = threading.Timer(0.1, signal.raise_signal, (signal.SIGINT,))
            timer.start()
            begin = time.monotonic()
            with self.assertRaises(KeyboardInterrupt):
                expectation.wait()
            self.assertLess(time.monotonic() - begin, 10)
            timer.join()


class ErrorsTest(parameterized.TestCase):
    def test_are_what_python_has_for_them(self):
        self.assertTrue(issubclass(errors.FabricError, RuntimeError))
        self.assertTrue(issubclass(errors.DeadlineExceeded, TimeoutError))
        self.assertTrue(issubclass(errors.InvalidArgument, ValueError))
        self.assertTrue(issubclass(errors.CorruptData, ValueError))
        error = errors.from_status("UNAVAILABLE", "gone", "peer 1 'x'", None)
        copy = pickle.loads(pickle.dumps(error))
        self.assertIsInstance(copy, errors.PeerUnavailable)
        self.assertEqual((str(copy), copy.peer, copy.nic), ("gone", "peer 1 'x'", None))
        self.assertEqual(errors.from_status("NEW_ONE", "x", None, None).code, "NEW_ONE")


class TwoProcessesTest(absltest.TestCase):
    """Against one other process; the last test kills it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        context = multiprocessing.get_context("spawn")
        cls.pipe, other_end = context.Pipe()
        cls.process = context.Process(target=programs.partner, args=(other_end,), daemon=True)
        cls.process.start()
        cls.engine = engine.TransferEngine(timeout_s=20)
        cls.group = cls.engine.add_group("test")
        if not cls.pipe.poll(120):
            raise AssertionError("the other process does not come up")
        cls.pid, address, cls.shared, cls.plain, cls.immediates = cls.pipe.recv()
        cls.peer = cls.group.add_peer(address)
        cls.pipe.send(cls.group.address())
        cls.inbox = queue.Queue()
        cls.group.receive_messages(lambda *message: cls.inbox.put(message))
        cls.group.wait_peers([cls.peer])

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()
        cls.process.kill()
        cls.process.join()
        super().tearDownClass()

    def ask(self, *request):
        self.pipe.send(request)
        self.assertTrue(self.pipe.poll(30), "the other process does not answer")
        return self.pipe.recv()

    def test_1_pages(self):
        source = self.group.register(np.arange(1 << 18, dtype=np.uint32))
        pages = np.random.default_rng(3).permutation(256)
        self.group.write_pages(
            self.peer,
            source,
            pages,
            self.shared,
            np.arange(256),
            page_nbytes=4096,
            immediate=self.immediates[0],
        )
        found = self.ask("expect", self.immediates[0], 256)
        expected = source.array.reshape(256, 1024)[pages]
        self.assertEqual(found, expected.tobytes())

    def test_1_memory_that_is_not_shared(self):
        source = self.group.register(np.full(4096, 5, np.uint8))
        try:
            self.group.write(self.peer, source, self.plain).wait()
        except errors.FabricError as error:
            # The kernel may forbid it; then the error says what to do.
            self.assertIn("AllocateShared", str(error))
            return
        self.assertEqual(self.ask("plain"), bytes([5]) * 4096)

    def test_1_is_written_to(self):
        target = self.group.register(memory.allocate(1000), REMOTE_WRITE)
        (immediate,) = self.group.allocate_immediates(1)
        expectation = self.group.expect(immediate)
        self.assertEqual(self.ask("write", target.descriptor, immediate), "written")
        expectation.wait()
        self.assertTrue((target.array == 77).all())

    def test_1_messages(self):
        self.group.send(self.peer, b"abc").wait()
        self.assertEqual(self.inbox.get(timeout=10), (self.peer, b"cba"))

    def test_2_a_dead_peer_is_named(self):
        self.process.kill()
        self.process.join()
        source = self.group.register(np.zeros(1000, np.uint8))
        begin = time.monotonic()
        with self.assertRaises(errors.PeerUnavailable) as caught:
            while time.monotonic() < begin + 20:
                self.group.write(self.peer, source, self.shared).wait()
        self.assertIn("peer 0 'partner'", str(caught.exception))
        self.assertEqual(caught.exception.peer, "peer 0 'partner'")
        self.assertLess(time.monotonic() - begin, 10)


class ProgramTest(parameterized.TestCase):
    """Ends of programs, each in a process of its own."""

    @parameterized.parameters("exit_without_close", "exit_with_stuck_callbacks", "garbage")
    def test_ends_well(self, name):
        done = programs.run(name)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("end of main", done.stdout)
        if name == "exit_with_stuck_callbacks":
            self.assertIn("a task blocks", done.stderr)
        else:
            self.assertEqual(done.stderr, "")
        if name == "exit_without_close":
            self.assertIn("ended with Cancelled", done.stdout)


class DocsTest(absltest.TestCase):
    def test_examples_of_the_docs_run(self):
        text = (ROOT / "docs" / "host_api.md").read_text()
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        self.assertGreater(len(blocks), 6)
        exec(compile("\n".join(blocks), "docs/host_api.md", "exec"), {})

    def test_the_example_runs(self):
        done = programs.run_example("host_api.py")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("[7, 250, 42]", done.stdout)


if __name__ == "__main__":
    absltest.main()
