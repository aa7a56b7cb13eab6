"""A fabric's secret: how it is given, that it does not leak, and who is refused without it."""

import contextlib
import copy
import os
import pickle
import queue
import socket
import tempfile
from pathlib import Path
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

import jax_fabric as jf
from jax_fabric import engine, errors
from jax_fabric.bootstrap import LocalBootstrap, agree_on_secret

VALUE = b"the secret of the tests"
OTHER = b"the secret of other tests"


def listening():
    """Inodes of this process's sockets that something outside of the machine may reach."""
    open_files = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            open_files.add(os.readlink(fd))
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            inode = line.split()[9]
            if f"socket:[{inode}]" in open_files:
                found.add(inode)
    return found


class SecretTest(parameterized.TestCase):
    def test_is_not_shown(self):
        for secret in (jf.Secret(VALUE), jf.Secret.generate()):
            shown = f"{secret} {secret!r} {secret._native!r} {dir(secret)}"
            self.assertNotIn(secret.reveal(), shown.encode("latin-1"))
            self.assertNotIn(secret.reveal().hex(), shown)
            self.assertRegex(repr(secret), r"^Secret\(fingerprint [0-9a-f]{8}\)$")
            with self.assertRaises(AttributeError):
                secret.note = 1
        self.assertEqual(jf.Secret(VALUE).reveal(), VALUE)

    @parameterized.parameters(*range(pickle.HIGHEST_PROTOCOL + 1))
    def test_is_not_pickled(self, protocol):
        secret = jf.Secret(VALUE)
        for held in (secret, [secret], {"key": secret}):
            with self.assertRaisesRegex(TypeError, r"reveal\(\)"):
                pickle.dumps(held, protocol)
            with self.assertRaisesRegex(TypeError, r"reveal\(\)"):
                copy.deepcopy(held)
        with contextlib.suppress(TypeError):
            self.assertNotIn(VALUE, pickle.dumps(secret._native, protocol))

    def test_fingerprints_tell_secrets_apart(self):
        self.assertEqual(jf.Secret(VALUE).fingerprint, jf.Secret(VALUE).fingerprint)
        self.assertNotEqual(jf.Secret(VALUE).fingerprint, jf.Secret(OTHER).fingerprint)
        self.assertNotEqual(jf.Secret.generate().reveal(), jf.Secret.generate().reveal())

    @parameterized.parameters(b"", b"123456789012345", b"x" * 1025)
    def test_lengths(self, value):
        with self.assertRaisesRegex(errors.InvalidArgument, "16 to 1024"):
            jf.Secret(value)
        with self.assertRaisesRegex(errors.InvalidArgument, "16 to 1024"):
            engine.TransferEngine(secret=value)

    def test_other_types(self):
        with self.assertRaisesRegex(errors.InvalidArgument, "not bytes-like"):
            jf.Secret("a string of enough characters")


class FileTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory()), "secret")
        self.path.touch(0o600)
        self.enterContext(mock.patch.dict(os.environ, JAX_FABRIC_SECRET_FILE=str(self.path)))

    def test_is_the_default(self):
        self.path.write_bytes(VALUE + b"\n")
        self.assertEqual(jf.Secret.from_environment().reveal(), VALUE)
        with engine.TransferEngine() as by_file, engine.TransferEngine(secret=VALUE) as given:
            by_file.add_group().add_peer(given.add_group().address())
        with (
            engine.TransferEngine() as by_file,
            engine.TransferEngine(secret=OTHER) as given,
            self.assertRaisesRegex(errors.FabricError, jf.Secret(OTHER).fingerprint),
        ):
            by_file.add_group().add_peer(given.add_group().address())
        with jf.Fabric(jax.make_mesh((2,), ("ep",), devices=jax.devices()[:2])):
            pass

    def test_that_others_can_read_is_refused(self):
        self.path.write_bytes(VALUE)
        self.path.chmod(0o644)
        for make in (engine.TransferEngine, lambda: jf.Fabric(jax.make_mesh((1,), ("ep",)))):
            with self.assertRaisesRegex(errors.FabricError, "chmod 600") as raised:
                make()
            self.assertIn(str(self.path), str(raised.exception))
            self.assertNotIn(VALUE.decode(), str(raised.exception))

    def test_that_is_not_there(self):
        self.path.unlink()
        with self.assertRaisesRegex(errors.InvalidArgument, "cannot be opened"):
            engine.TransferEngine()

    def test_no_variable(self):
        del os.environ["JAX_FABRIC_SECRET_FILE"]
        self.assertIsNone(jf.Secret.from_environment())


class EngineTest(parameterized.TestCase):
    @parameterized.parameters((VALUE, OTHER), (VALUE, None), (None, VALUE))
    def test_another_secret_is_refused_by_name(self, here, there):
        with engine.TransferEngine(secret=here) as one, engine.TransferEngine(secret=there) as two:
            other = two.add_group("decoder")
            with self.assertRaisesRegex(errors.FabricError, "'decoder'.*secret=") as raised:
                one.add_group("prefiller").add_peer(other.address())
            self.assertEqual(raised.exception.code, "PERMISSION_DENIED")
            for side, value in (("here", here), ("there", there)):
                seen = f"fingerprint {jf.Secret(value).fingerprint}" if value else "none"
                self.assertIn(f"{side}: {seen}", str(raised.exception))

    @parameterized.parameters(VALUE, None)
    def test_messages(self, value):
        inbox = queue.Queue()
        secret = value and jf.Secret(value)
        with (
            engine.TransferEngine(secret=secret) as one,
            engine.TransferEngine(secret=value) as two,
        ):
            a, b = one.add_group("a"), two.add_group("b")
            to_b = a.add_peer(b.address())
            from_a = b.add_peer(a.address())
            a.wait_peers([to_b])
            b.wait_peers([from_a])
            b.receive_messages(lambda *message: inbox.put(message), buffers=4, max_nbytes=8192)
            sent = [bytes([i % 256]) * (0 if i == 7 else 41 * i) for i in range(190)] + [
                b"x" * 8192
            ]
            for message in sent:
                a.send(to_b, message)
            received = [inbox.get(timeout=30) for _ in sent]
            self.assertCountEqual([message for _, message in received], sent)
            self.assertTrue(all(peer is from_a for peer, _ in received))
            self.assertEqual((b.forged_messages, b.replayed_messages), (0, 0))
            with self.assertRaisesRegex(errors.InvalidArgument, "at most 8192"):
                a.send(to_b, b"x" * 8193)

    def test_nothing_listens_beyond_the_machine(self):
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))):
            self.assertNotEmpty(listening())  # it finds what there is
        before = listening()
        with engine.TransferEngine(secret=VALUE) as fabric:
            groups = [fabric.add_group() for _ in range(3)]
            groups[0].wait_peers([groups[0].add_peer(group.address()) for group in groups[1:]])
            groups[0].register(np.zeros(8))
            self.assertEqual(listening(), before)


class Board(LocalBootstrap):
    """Between what would be processes."""

    def agree(self, process, given=None, processes=(0, 1, 2)):
        return agree_on_secret(
            self, "key", given=given, process=process, processes=processes, timeout_s=0.1
        )


class AgreementTest(absltest.TestCase):
    def test_the_first_makes_one(self):
        board = Board()
        secrets = [board.agree(process).reveal() for process in range(3)]
        self.assertEqual(secrets, secrets[:1] * 3)
        self.assertNotEqual(Board().agree(0).reveal(), secrets[0])

    def test_a_given_one_is_not_published(self):
        board = Board()
        for process, given in ((0, VALUE), (1, jf.Secret(VALUE)), (2, VALUE)):
            self.assertEqual(board.agree(process, given).reveal(), VALUE)
        self.assertNotIn(VALUE, b"".join(board._blobs.values()))

    def test_one_process_publishes_nothing(self):
        board = Board()
        board.agree(0, processes=(0,))
        self.assertEmpty(board._blobs)

    def test_differences_are_found_at_once(self):
        for first, second in ((VALUE, OTHER), (VALUE, None), (None, VALUE)):
            board = Board()
            board.agree(0, first)
            with self.assertRaisesRegex(ValueError, "process 1.*process 0.*secret=") as raised:
                board.agree(1, second)
            for value in filter(None, (first, second)):
                self.assertNotIn(value.decode(), str(raised.exception))
            if first:
                self.assertIn(jf.Secret(first).fingerprint, str(raised.exception))
            if second:
                self.assertIn(jf.Secret(second).fingerprint, str(raised.exception))

    def test_the_first_does_not_come(self):
        with self.assertRaises(TimeoutError):
            Board().agree(1)


if __name__ == "__main__":
    absltest.main()
