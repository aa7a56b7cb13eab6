"""Requests of jax_fabric.engine: what they move, and every bad argument."""

import contextlib
import gc
import queue
import threading
import time
import weakref

import numpy as np
from absl.testing import absltest, parameterized
from engine_testing import PairTest

from jax_fabric import engine, errors, memory

REMOTE_WRITE = memory.Access.REMOTE_WRITE


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


if __name__ == "__main__":
    absltest.main()
