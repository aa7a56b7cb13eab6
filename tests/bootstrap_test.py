"""How processes find each other: by a folder, by an address, by jax.distributed."""

import contextlib
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

import bootstrap_programs as programs
import numpy as np
import processes_testing
from absl.testing import absltest, parameterized

from jax_fabric import bootstrap, engine, errors
from jax_fabric.bootstrap import board_protocol
from jax_fabric.testing import launch

KINDS = ("file", "address")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class BoardTest(parameterized.TestCase):
    def place(self, kind):
        """A folder, or an address where this process keeps the board."""
        if kind == "file":
            return self.enter_context(tempfile.TemporaryDirectory())
        board = programs.open_board(kind, "127.0.0.1:0", keep=True)
        self.addCleanup(board.close)
        return board.address


class InterfaceTest(BoardTest):
    @parameterized.parameters(*KINDS)
    def test_one_process(self, kind):
        board = programs.open_board(kind, self.place(kind))
        board.publish("a/b", b"\0\1")
        board.publish("empty", b"")
        self.assertEqual(board.fetch("a/b", 1.0), b"\0\1")
        self.assertEqual(board.fetch("empty", 0.0), b"")
        self.assertEqual(board.publish_first("a/b", b"later"), b"\0\1")
        self.assertEqual(board.publish_first("c", b"first"), b"first")
        with self.assertRaisesRegex(RuntimeError, "'a/b' was published before"):
            board.publish("a/b", b"other")

    @parameterized.parameters(*KINDS)
    def test_keys_are_any_text(self, kind):
        board = programs.open_board(kind, self.place(kind))
        for number, key in enumerate(("..", "../x", ".hidden", "a b/ü", "a%2Fb", "a/b", "A/b")):
            board.publish(key, bytes([number]))
        for number, key in enumerate(("..", "../x", ".hidden", "a b/ü", "a%2Fb", "a/b", "A/b")):
            self.assertEqual(board.fetch(key, 0.0), bytes([number]), key)

    @parameterized.parameters(*KINDS)
    def test_a_wait_ends_in_time(self, kind):
        board = programs.open_board(kind, self.place(kind))
        begin = time.monotonic()
        with self.assertRaisesRegex(TimeoutError, r"'nobody' was not published within 0.7 s"):
            board.fetch("nobody", 0.7)
        self.assertBetween(time.monotonic() - begin, 0.6, 10.0)

    @parameterized.parameters(*KINDS)
    def test_a_wait_ends_when_it_comes(self, kind):
        board = programs.open_board(kind, self.place(kind))
        timer = threading.Timer(1.0, board.publish, ("late", b"here"))
        timer.start()
        self.addCleanup(timer.join)
        self.assertEqual(board.fetch("late", 30.0), b"here")

    @parameterized.parameters(*KINDS)
    def test_processes(self, kind):
        place, count = self.place(kind), 4
        context = multiprocessing.get_context("spawn")
        answers = context.Queue()
        processes = [
            context.Process(target=programs.meet, args=(kind, place, i, count, answers))
            for i in range(count)
        ]
        for process in processes:
            process.start()
        told = [answers.get(timeout=120) for _ in processes]
        for process in processes:
            process.join(30)
        want = [(number, 1 << 16) for number in range(count)]
        for number, blobs, _ in told:
            self.assertEqual(blobs, want, f"process {number}")
        self.assertLen({chosen for _, _, chosen in told}, 1)

    @parameterized.parameters(*KINDS)
    def test_a_fabric(self, kind):
        place = self.enter_context(tempfile.TemporaryDirectory())
        if kind == "address":
            place = f"127.0.0.1:{free_port()}"
        with mock.patch.dict(os.environ, {"XLA_FLAGS": processes_testing.FAST}):
            launch.run(programs.exchange, kind, place, processes=2, timeout_s=200)

    @parameterized.parameters(*KINDS)
    def test_peers_come_and_go(self, kind):
        """Host code: decoders that start one after the other, each for one transfer."""
        place = self.place(kind)
        board = programs.open_board(kind, place)
        with (
            engine.TransferEngine(timeout_s=60, secret=programs.SECRET) as transfers,
            contextlib.ExitStack() as stack,
        ):
            group = transfers.add_group("prefiller")
            board.publish("prefiller/address", group.address())
            decoders = []
            for number in range(2):
                name = f"decoder{number}"
                command = [sys.executable, programs.__file__, kind, place, name]
                decoder = subprocess.Popen(command, env=_environment())
                stack.callback(decoder.kill)
                decoders.append(decoder)
                peer = group.add_peer(board.fetch(f"{name}/address", 60))
                target = programs.memory.RemoteMemory(board.fetch(f"{name}/memory", 60))
                immediate = int(board.fetch(f"{name}/immediate", 60))
                rows = np.full(4096, 65 + number, np.uint8)
                group.write(peer, group.register(rows), target, immediate=immediate).wait()
                self.assertEqual(board.fetch(f"{name}/got", 60), rows.tobytes())
                group.remove_peer(peer)
            board.publish("over", b"")
            self.assertEqual([decoder.wait(60) for decoder in decoders], [0, 0])


class FileTest(BoardTest):
    def test_files_are_nobody_elses(self):
        folder = self.place("file")
        board = bootstrap.FileBootstrap(folder, run="a/b")
        board.publish("key", b"secret")
        (run,) = Path(folder).iterdir()
        self.assertEqual(run.stat().st_mode & 0o777, 0o700)
        (file,) = run.iterdir()
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)

    def test_a_folder_that_others_read_is_refused(self):
        folder = self.place("file")
        bootstrap.FileBootstrap(folder, run="a")
        (run,) = Path(folder).iterdir()
        run.chmod(0o750)
        with self.assertRaisesRegex(errors.InvalidArgument, "closed to others: chmod 700"):
            bootstrap.FileBootstrap(folder, run="a")

    def test_another_run_sees_nothing(self):
        folder = self.place("file")
        bootstrap.FileBootstrap(folder, run="1").publish("key", b"old")
        with self.assertRaises(TimeoutError):
            bootstrap.FileBootstrap(folder, run="2").fetch("key", 0.1)

    def test_arguments(self):
        with self.assertRaisesRegex(errors.InvalidArgument, "run=''"):
            bootstrap.FileBootstrap(self.place("file"), run="")


class AddressTest(BoardTest):
    def setUp(self):
        super().setUp()
        self.address = self.place("address")
        self.board = programs.open_board("address", self.address)

    def test_ipv6_and_names(self):
        for address in ("[::1]:0", "localhost:0"):
            try:
                keeper = programs.open_board("address", address, keep=True)
            except OSError as error:
                if "[" in address:  # a machine without it
                    continue
                raise error
            self.addCleanup(keeper.close)
            keeper.publish("key", b"blob")
            board = programs.open_board("address", keeper.address)
            self.assertEqual(board.fetch("key", 5.0), b"blob", keeper.address)

    def test_another_secret_reads_nothing(self):
        self.board.publish("key", b"blob")
        stranger = bootstrap.AddressBootstrap(
            self.address, secret=b"of somebody else altogether", keep=False
        )
        with self.assertRaisesRegex(TimeoutError, "no board with this secret answered"):
            stranger.fetch("key", 0.5)
        with self.assertRaises(TimeoutError):
            bootstrap.AddressBootstrap(
                self.address, secret=b"of somebody else altogether", keep=False, timeout_s=0.5
            ).publish("other", b"")
        with self.assertRaises(TimeoutError):
            self.board.fetch("other", 0.2)

    def test_secrets_that_begin_alike_differ(self):
        one = b"x" * 64
        keeper = bootstrap.AddressBootstrap("127.0.0.1:0", secret=one + b"1", keep=True)
        self.addCleanup(keeper.close)
        keeper.publish("key", b"")
        other = bootstrap.AddressBootstrap(keeper.address, secret=one + b"2", keep=False)
        with self.assertRaises(TimeoutError):
            other.fetch("key", 0.3)

    def test_a_board_that_is_not_there_yet(self):
        address = f"127.0.0.1:{free_port()}"
        early = programs.open_board("address", address)
        found = queue.Queue()
        thread = threading.Thread(target=lambda: found.put(early.fetch("key", 30.0)))
        thread.start()
        self.addCleanup(thread.join)
        time.sleep(0.5)
        with programs.open_board("address", address, keep=True) as board:
            board.publish("key", b"here")
            self.assertEqual(found.get(timeout=30), b"here")

    def test_nobody_there(self):
        missing = programs.open_board("address", f"127.0.0.1:{free_port()}")
        with self.assertRaisesRegex(TimeoutError, "Connection refused.*keep=True"):
            missing.fetch("key", 0.4)

    def test_noise_is_dropped(self):
        """Whatever comes in, the board goes on, and nothing is published."""
        host, port = self.address.split(":")
        random = np.random.default_rng(3)
        head = board_protocol._REQUEST
        noises = [
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
            head.pack(board_protocol.PUBLISH, 0, 1, 1) + b"kb" + bytes(32),
            head.pack(board_protocol.FETCH, 2**32 - 1, 2**16 - 1, 2**32 - 1),
            head.pack(9, 0, 0, 0) + bytes(32),
            *(random.bytes(int(random.integers(1, 200))) for _ in range(50)),
        ]
        for noise in noises:
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                board_protocol.read_exactly(connection, board_protocol.NONCE_BYTES)
                with contextlib.suppress(OSError):  # it may have gone in the middle
                    connection.sendall(noise)
                    connection.shutdown(socket.SHUT_WR)
                    self.assertEqual(connection.recv(1), b"")
        with self.assertRaises(TimeoutError):
            self.board.fetch("k", 0.1)
        self.board.publish("k", b"v")
        self.assertEqual(self.board.fetch("k", 5.0), b"v")

    def test_a_request_cannot_be_played_again(self):
        """What was recorded has a tag of another connection."""
        sent = []
        real = socket.socket.sendall
        with mock.patch.object(
            socket.socket, "sendall", lambda self, data: (sent.append(data), real(self, data))[1]
        ):
            self.board.publish("key", b"blob")
        recorded = max(sent, key=len)
        host, port = self.address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            board_protocol.read_exactly(connection, board_protocol.NONCE_BYTES)
            connection.sendall(recorded)
            self.assertEqual(connection.recv(1), b"")

    def test_the_board_closes(self):
        keeper = programs.open_board("address", "127.0.0.1:0", keep=True)
        other = programs.open_board("address", keeper.address)
        other.publish("key", b"")
        keeper.close()
        keeper.close()
        with self.assertRaises(TimeoutError):
            other.fetch("key", 0.5)

    @parameterized.parameters(
        ("7000", "give 'host:port'"),
        ("host:", "give 'host:port'"),
        ("host:70000", "port=70000"),
        ("127.0.0.1:0", "port 0 is for the process with the board"),
    )
    def test_addresses(self, address, message):
        with self.assertRaisesRegex(errors.InvalidArgument, message):
            programs.open_board("address", address)

    def test_limits(self):
        with self.assertRaisesRegex(errors.InvalidArgument, "key: 2000 bytes; at most 1024"):
            self.board.publish("k" * 2000, b"")
        with self.assertRaisesRegex(errors.InvalidArgument, "blob: 16777217 bytes"):
            self.board.publish("k", bytes((16 << 20) + 1))


def _environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}


if __name__ == "__main__":
    absltest.main()
