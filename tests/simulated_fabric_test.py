"""Users' own code over a fabric that misbehaves."""

import threading

import numpy as np
from absl.testing import absltest, parameterized

from jax_fabric import errors
from jax_fabric.memory import Access, RemoteMemory
from jax_fabric.testing.simulated_fabric import SimulatedFabric

# Everything at once.
BAD = dict(
    reorder_s=50e-6,
    segment_nbytes=512,
    bytes_per_s=1e9,
    loss=0.1,
    again=0.3,
    early_completion=0.5,
    handshake_loss=0.3,
)


def connected(fabric, count=2, **kwargs):
    groups = [fabric.add_group(f"rank {i}", **kwargs) for i in range(count)]
    peers = [[a.add_peer(b.address()) for b in groups if b is not a] for a in groups]
    for group, others in zip(groups, peers, strict=True):
        group.wait_peers(others)
    return groups, peers


def target_of(group, nbytes):
    region = group.register(np.zeros(nbytes, np.uint8), Access.REMOTE_WRITE)
    return region, RemoteMemory(bytes(region.descriptor))


def exchange(fabric):
    """Writes of odd sizes both ways, pages and messages; returns when all of it has come."""
    (a, b), ((to_b,), (to_a,)) = connected(fabric, nics=2)
    rng = np.random.default_rng(0)
    inbox = []
    b.receive_messages(lambda peer, message: inbox.append(message))
    transfers = []
    for source, peer, sink in ((a, to_b, b), (b, to_a, a)):
        for nbytes in (1, 511, 7001):
            region, remote = target_of(sink, nbytes)
            data = rng.integers(0, 256, nbytes, np.uint8)
            (arrived,) = sink.allocate_immediates(1)
            count = source.write_immediates(peer, nbytes)
            transfers.append(source.write(peer, source.register(data), remote, immediate=arrived))
            sink.expect(arrived, count=count).wait()
            np.testing.assert_array_equal(region.array, data)
    pages = rng.integers(0, 256, 64 * 100, np.uint8)
    region, remote = target_of(b, pages.size)
    (arrived,) = b.allocate_immediates(1)
    order = rng.permutation(64)
    source = a.register(pages)
    transfers.append(
        a.write_pages(to_b, source, order, remote, order, page_nbytes=100, immediate=arrived)
    )
    b.expect(arrived, count=64).wait()
    np.testing.assert_array_equal(region.array, pages)
    transfers += [a.send(to_b, bytes([i])) for i in range(20)]
    fabric.run_until(lambda: len(inbox) == 20)
    for transfer in transfers:
        transfer.wait()
    return [inbox, fabric.now_s, fabric.retransmissions, fabric.reordered_segments]


class SimulatedFabricTest(parameterized.TestCase):
    def test_nothing_is_lost(self):
        for seed in range(20):
            with self.subTest(seed=seed), SimulatedFabric(seed=seed, **BAD) as fabric:
                inbox, _, retransmissions, reordered = exchange(fabric)
                self.assertCountEqual(inbox, [bytes([i]) for i in range(20)])
                self.assertGreater(retransmissions, 0)
                self.assertGreater(reordered, 0)

    def test_the_same_seed_is_the_same_run(self):
        def run(seed):
            with SimulatedFabric(seed=seed, **BAD) as fabric:
                return exchange(fabric)

        self.assertEqual(run(3), run(3))
        self.assertNotEqual(run(3), run(4))

    def test_an_exception_has_the_seed(self):
        with self.assertRaises(ValueError) as raised, SimulatedFabric(seed=17):
            raise ValueError("of the test")
        self.assertIn("seed=17", "".join(raised.exception.__notes__))

    def test_time_is_virtual(self):
        with SimulatedFabric(latency_s=2.0) as fabric:
            (a, _), ((to_b,), _) = connected(fabric, timeout_s=1e5)
            begin = fabric.now_s
            a.send(to_b, b"far").wait()
            self.assertGreaterEqual(fabric.now_s - begin, 2)
            fabric.run(7.5)
            self.assertGreaterEqual(fabric.now_s - begin, 9.5)

    def test_a_deadline_is_virtual_too(self):
        with SimulatedFabric() as fabric:
            (a, _), _ = connected(fabric)
            (never,) = a.allocate_immediates(1)
            with self.assertRaises(errors.DeadlineExceeded):
                a.expect(never, timeout_s=5.0).wait()
            self.assertBetween(fabric.now_s, 5.0, 6.0)
            with self.assertRaisesRegex(errors.DeadlineExceeded, "seed 0"):
                fabric.run_until(lambda: False, timeout_s=1.0)

    def test_a_cut_link_delays_until_it_is_restored(self):
        with SimulatedFabric(retries=10**6) as fabric:
            (a, b), ((to_b,), _) = connected(fabric)
            fabric.cut(a, b)
            transfer = a.send(to_b, b"late")
            fabric.run(0.1)
            self.assertFalse(transfer.done())
            fabric.restore(a, b)
            transfer.wait()

    def test_a_cut_link_is_a_lost_peer_after_all_retries(self):
        with SimulatedFabric(retries=3) as fabric:
            (a, b), ((to_b,), _) = connected(fabric)
            fabric.cut(a, b)
            with self.assertRaisesRegex(errors.PeerUnavailable, "rank 1"):
                a.send(to_b, b"gone").wait()

    def test_a_killed_group_is_noticed_and_others_go_on(self):
        with SimulatedFabric(retries=3) as fabric:
            (a, b, c), ((to_b, to_c), _, _) = connected(fabric, 3)
            (never,) = b.allocate_immediates(1)
            expectation = b.expect(never)
            fabric.kill(b)
            with self.assertRaises(errors.Cancelled):
                expectation.wait()
            with self.assertRaisesRegex(errors.PeerUnavailable, "rank 1"):
                a.send(to_b, b"gone").wait()
            a.send(to_c, b"there").wait()
            with self.assertRaisesRegex(errors.InvalidArgument, "not a living group"):
                fabric.kill(b)

    def test_restarts(self):
        with SimulatedFabric(seed=5, **BAD) as fabric:
            (a, b), _ = connected(fabric)
            for _ in range(20):
                b = fabric.restart(b)
                self.assertEqual(b.name, "rank 1")
                received = []
                b.receive_messages(lambda peer, message, to=received: to.append(message))
                peer = a.add_peer(b.address())
                a.wait_peers([peer])
                a.send(peer, b"hello").wait()
                fabric.run_until(lambda to=received: bool(to))

    def test_a_callback_that_waits_gets_a_deadline(self):
        with SimulatedFabric() as fabric:
            (a, b), ((to_b,), (to_a,)) = connected(fabric)
            seen = []

            def on_message(peer, message):
                try:
                    b.send(to_a, b"answer").wait()
                except errors.DeadlineExceeded as error:
                    seen.append(error)

            b.receive_messages(on_message)
            a.send(to_b, b"question")
            fabric.run_until(lambda: bool(seen), timeout_s=100.0)

    def test_other_threads_are_refused(self):
        with SimulatedFabric() as fabric:
            group = fabric.add_group()
            raised = []

            def use():
                for call in (fabric.step, group.address, fabric.add_group):
                    try:
                        call()
                    except errors.FabricError as error:
                        raised.append(str(error))

            thread = threading.Thread(target=use)
            thread.start()
            thread.join()
            self.assertLen(raised, 3)
            self.assertIn("the thread that made", raised[0])

    @parameterized.parameters(
        (dict(loss=1.0), "loss=1.0"),
        (dict(again=-0.1), "again=-0.1"),
        (dict(latency_s=-1.0), "latency_s=-1.0"),
        (dict(segment_nbytes=0), "segment_nbytes=0"),
        (dict(bytes_per_s=0.0), "bytes_per_s=0.0"),
        (dict(seed=-1), "seed=-1"),
    )
    def test_errors_name_the_argument(self, change, message):
        with self.assertRaisesRegex(errors.InvalidArgument, message):
            SimulatedFabric(**change)

    def test_closing_twice_and_never(self):
        fabric = SimulatedFabric()
        connected(fabric)
        fabric.close()
        fabric.close()
        self.assertIn("0 groups", repr(fabric))
        connected(SimulatedFabric())  # dropped with everything


if __name__ == "__main__":
    absltest.main()
