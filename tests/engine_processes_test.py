"""jax_fabric.engine against another process, ends of programs, and what the docs show."""

import multiprocessing
import queue
import re
import time
from pathlib import Path

import engine_programs as programs
import numpy as np
from absl.testing import absltest, parameterized

from jax_fabric import engine, errors, memory

ROOT = Path(__file__).parent.parent
REMOTE_WRITE = memory.Access.REMOTE_WRITE


class TwoProcessesTest(absltest.TestCase):
    """Against one other process; the last test kills it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        context = multiprocessing.get_context("spawn")
        cls.pipe, other_end = context.Pipe()
        cls.process = context.Process(target=programs.partner, args=(other_end,), daemon=True)
        cls.process.start()
        cls.engine = engine.TransferEngine(timeout_s=20, secret=programs.SECRET)
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
        self.group.write(self.peer, source, self.plain).wait()
        self.assertEqual(self.ask("plain"), bytes([5]) * 4096)
        # The kernel decides by which of both.
        self.assertRegex(
            self.group.peer_path(self.peer),
            "^shared memory and (process_vm_writev|bounce slots)$",
        )

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

    def test_the_example_of_a_bad_fabric_runs(self):
        done = programs.run_example("bad_fabric.py")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("everybody has it"), 100)

    def test_the_example_runs(self):
        done = programs.run_example("host_api.py")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("[7, 250, 42]", done.stdout)

    def test_the_example_of_a_layer_runs(self):
        done = programs.run_example("moe_layer.py")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("output (256, 64)", done.stdout)
        norm = re.search(r"gradient of the experts \(16, 64, 128\) norm (\S+)", done.stdout)
        self.assertGreater(float(norm[1]), 0)
        self.assertLess(float(norm[1]), float("inf"))

    def test_the_example_of_two_processes_runs(self):
        done = programs.run_example("two_processes.py")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("process 0 received [1.0, 1.0, 1.0, 1.0]", done.stdout)
        self.assertIn("process 1 received [0.0, 0.0, 0.0, 0.0]", done.stdout)


if __name__ == "__main__":
    absltest.main()
