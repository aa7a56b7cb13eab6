"""jax_fabric.engine: callbacks, watchers, peers and every end."""

import gc
import pickle
import queue
import signal
import sys
import threading
import time
import weakref

import numpy as np
from absl.testing import absltest, parameterized
from engine_testing import Pair, PairTest, unraisable

from jax_fabric import engine, errors, memory

REMOTE_WRITE = memory.Access.REMOTE_WRITE


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
            self.assertEqual(pair.a.peer_path(pair.to_b), "same process")
            pair.a.remove_peer(pair.to_b)
            pair.a.remove_peer(pair.to_b)
            with self.assertRaisesRegex(errors.PeerUnavailable, "peer 0 'b'.*removed") as caught:
                pair.a.write(pair.to_b, None, target).wait()
            self.assertEqual(caught.exception.peer, "peer 0 'b'")
            with self.assertRaisesRegex(errors.PeerUnavailable, "removed") as caught:
                pair.a.wait_peers([pair.to_b], timeout_s=1)
            self.assertEqual(caught.exception.peer, "peer 0 'b'")
            self.assertEqual(pair.a.peer_path(pair.to_b), "not connected")

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
            begin = time.monotonic()
            # Nowhere else may it come: it would end the process that runs the tests.
            with self.assertRaises(KeyboardInterrupt):
                timer.start()
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


if __name__ == "__main__":
    absltest.main()
