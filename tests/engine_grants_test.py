"""Grants of jax_fabric.engine: memory that is taken back from whoever writes to it."""

import pickle

import numpy as np
from absl.testing import absltest, parameterized
from engine_testing import PairTest

from jax_fabric import engine, errors, memory
from jax_fabric.testing.simulated_fabric import SimulatedFabric

PAGE, PAGES = 256, 16
NBYTES = PAGE * PAGES
REMOTE_WRITE = memory.Access.REMOTE_WRITE


def ignore(peer, message):
    raise AssertionError(f"a user sees a message of the protocol: {peer} {message}")


class Grants:
    """A writer and an owner, one region each, and all kinds of requests between them."""

    KINDS = ("write", "pages", "scatter", "prepared")

    def __init__(self, writer, owner, to_owner, to_writer):
        self.writer, self.owner = writer, owner
        self.to_owner, self.to_writer = to_owner, to_writer
        for group in (writer, owner):
            group.receive_messages(ignore)
        self.source = writer.register(np.full(NBYTES, 0x11, np.uint8))
        self.target = owner.register(np.zeros(NBYTES, np.uint8), REMOTE_WRITE)
        self.descriptor = memory.RemoteMemory(bytes(self.target.descriptor))
        self.scatters = []

    def open(self):
        (immediate,) = self.owner.allocate_immediates(1)
        return self.owner.open_grant(self.to_writer, immediate)

    def entries(self, immediate, nbytes=PAGE):
        return [
            engine.ScatterEntry(
                self.to_owner,
                self.descriptor,
                immediate,
                self.source,
                nbytes=nbytes,
                target_offset=at,
            )
            for at in range(0, NBYTES, PAGE)
        ]

    def start(self, kind, grant, immediate=None):
        """All of the target; 16 immediates, except for "write"."""
        immediate = grant.immediate if immediate is None else immediate
        to, here, there = self.to_owner, self.source, self.descriptor
        if kind == "write":
            return self.writer.write(to, here, there, immediate=immediate, grant=grant)
        if kind == "pages":
            pages = np.arange(PAGES)
            return self.writer.write_pages(
                to, here, pages, there, pages, page_nbytes=PAGE, immediate=immediate, grant=grant
            )
        if kind == "scatter":
            return self.writer.scatter(self.entries(immediate), grant=grant)
        self.scatters.append(self.writer.prepare_scatter(self.entries(immediate)))
        return self.scatters[-1].post(grant=grant)


class LocalGrantsTest(PairTest):
    def setUp(self):
        super().setUp()
        pair = self.pair
        self.grants = Grants(pair.a, pair.b, pair.to_b, pair.to_a)

    @parameterized.parameters(*Grants.KINDS)
    def test_nothing_is_written_after_a_revocation(self, kind):
        grants = self.grants
        grant = engine.WriteGrant(bytes(grants.open()))  # as it comes to the writer
        first = grants.start(kind, grant)
        count = 1 if kind == "write" else PAGES
        grants.owner.expect(grant.immediate, count).wait()
        first.wait()
        self.assertTrue((grants.target.array == 0x11).all())
        more = grants.owner.expect(grant.immediate)
        grants.owner.revoke_grant(grant).wait()
        with self.assertRaises(errors.Cancelled):
            more.wait()
        grants.target.array[:] = 0xEE
        with self.assertRaisesRegex(errors.Cancelled, f"took grant {grant.id} back"):
            grants.start(kind, grant).wait()
        # Others are not concerned, and what is over is free at once.
        other = grants.open()
        grants.owner.revoke_grant(grant, timeout_s=1e-3).wait()
        self.assertTrue((grants.target.array == 0xEE).all())
        grants.start(kind, other).wait()
        grants.owner.expect(other.immediate, count).wait()
        self.assertTrue((grants.target.array == 0x11).all())
        grants.owner.close_grant(other)

    def test_a_prepared_scatter_is_posted_under_one_after_the_other(self):
        grants = self.grants
        first = grants.open()
        scatter = grants.writer.prepare_scatter(grants.entries(first.immediate))
        for grant in (first, grants.owner.open_grant(grants.to_writer, first.immediate)):
            scatter.post(grant=grant).wait()
            grants.owner.expect(first.immediate, PAGES).wait()
            grants.owner.revoke_grant(grant).wait()
            with self.assertRaises(errors.Cancelled):
                scatter.post(grant=grant).wait()
        scatter.post().wait()

    def test_the_writer_gives_it_up(self):
        grants = self.grants
        grant = grants.open()
        expected = grants.owner.expect(grant.immediate)
        grants.writer.give_up_grant(grants.to_owner, grant)
        with self.assertRaises(errors.Cancelled):
            expected.wait()
        with self.assertRaises(errors.Cancelled):
            grants.start("write", grant).wait()
        grants.owner.revoke_grant(grant).wait()

    def test_bytes(self):
        grant = self.grants.open()
        self.assertEqual(pickle.loads(pickle.dumps(grant)), grant)
        self.assertEqual(hash(engine.WriteGrant(bytes(grant))), hash(grant))
        self.assertNotEqual(self.grants.open(), grant)
        self.assertEqual(repr(grant), f"WriteGrant(id={grant.id}, immediate={grant.immediate})")
        damaged = bytearray(bytes(grant))
        damaged[-6] ^= 1
        with self.assertRaises(errors.CorruptData):
            engine.WriteGrant(bytes(damaged))
        with self.assertRaises(errors.InvalidArgument):
            engine.WriteGrant(bytes(self.grants.target.descriptor))
        with self.assertRaisesRegex(errors.InvalidArgument, "grant: int is not"):
            engine.WriteGrant(7)

    @parameterized.parameters(*Grants.KINDS)
    def test_another_immediate(self, kind):
        grant = self.grants.open()
        with self.assertRaisesRegex(errors.InvalidArgument, f"immediate, {grant.immediate}"):
            self.grants.start(kind, grant, immediate=grant.immediate + 1)

    def test_bad_arguments(self):
        grants = self.grants
        grant = grants.open()
        for call in (
            lambda: grants.start("write", b"grant", immediate=1),
            lambda: grants.owner.revoke_grant(bytes(grant)),
            lambda: grants.owner.close_grant(None),
            lambda: grants.writer.give_up_grant(grants.to_owner, 3),
            lambda: grants.writer.prepare_scatter([]).post(grant=5),
        ):
            with self.assertRaisesRegex(errors.InvalidArgument, "grant="):
                call()
        with self.assertRaisesRegex(errors.InvalidArgument, "peer="):
            grants.owner.open_grant(grants.to_owner, grant.immediate)
        with self.assertRaisesRegex(errors.FabricError, "was not handed out"):
            grants.owner.open_grant(grants.to_writer, 2**32 - 1)
        silent = self.pair.engine.add_group("silent")
        peer = silent.add_peer(grants.owner.address())
        with self.assertRaisesRegex(errors.FabricError, "call ReceiveMessages first"):
            silent.open_grant(peer, *silent.allocate_immediates(1))


class BadFabricTest(parameterized.TestCase):
    def connect(self, net):
        writer, owner = net.add_group("writer"), net.add_group("owner")
        to_owner, to_writer = writer.add_peer(owner.address()), owner.add_peer(writer.address())
        writer.wait_peers([to_owner])
        return Grants(writer, owner, to_owner, to_writer)

    @parameterized.product(seed=[0, 1, 2, 3], kind=Grants.KINDS)
    def test_taken_back_in_the_middle(self, seed, kind):
        with SimulatedFabric(
            seed=seed, reorder_s=50e-6, segment_nbytes=64, loss=0.1, again=0.2, early_completion=0.5
        ) as net:
            grants = self.connect(net)
            grant = grants.open()
            transfers = [grants.start(kind, grant) for _ in range(3)]
            net.run(seed * 20e-6)
            grants.owner.revoke_grant(grant).wait()
            grants.target.array[:] = 0xEE
            for transfer in transfers:
                try:
                    transfer.wait()
                except errors.Cancelled as error:
                    self.assertRegex(str(error), "took (the )?grant")
            net.run(0.1)
            self.assertTrue((grants.target.array == 0xEE).all())

    def test_quarantine(self):
        """Until the writer can be asked, or is no peer any more."""
        for is_removed in (False, True):
            with SimulatedFabric(seed=1, retries=10**6, lease_s=1e6) as net:
                grants = self.connect(net)
                grant = grants.open()
                net.cut(grants.writer, grants.owner)
                grants.start("pages", grant)
                with self.assertRaisesRegex(errors.DeadlineExceeded, "quarantine"):
                    grants.owner.revoke_grant(grant, timeout_s=0.01).wait()
                if is_removed:
                    grants.owner.remove_peer(grants.to_writer)
                else:
                    net.restore(grants.writer, grants.owner)
                grants.owner.revoke_grant(grant).wait()

    def test_a_write_that_failed_may_land_later(self):
        with SimulatedFabric(seed=1, latency_s=1e-3) as net:
            grants = self.connect(net)
            grant = grants.open()
            transfer = grants.start("pages", grant)
            net.run(1e-4)
            grants.target.close()  # they are on their way
            with self.assertRaisesRegex(errors.FabricError, "remote key"):
                transfer.wait()
            revocation = grants.owner.revoke_grant(grant)
            with self.assertRaisesRegex(errors.InQuarantine, "16 of its writes failed"):
                revocation.wait()
            self.assertIsInstance(revocation.error(), errors.InQuarantine)
            grants.owner.remove_peer(grants.to_writer)
            grants.owner.revoke_grant(grant).wait()


if __name__ == "__main__":
    absltest.main()
