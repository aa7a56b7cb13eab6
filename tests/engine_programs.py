"""Other processes of engine_processes_test."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np

from jax_fabric import engine, errors, memory
from jax_fabric.engine import transfer_engine

SECRET = b"of both sides of this test"


def partner(pipe):
    """Does what the test's process asks for, until it is killed."""
    with engine.TransferEngine(timeout_s=20, secret=SECRET) as fabric:
        group = fabric.add_group("partner")
        shared = group.register(memory.allocate(1 << 20), memory.Access.REMOTE_WRITE)
        plain = group.register(np.zeros(4096, np.uint8), memory.Access.REMOTE_WRITE)
        immediates = group.allocate_immediates(4)
        pipe.send((os.getpid(), group.address(), shared.descriptor, plain.descriptor, immediates))
        peer = group.add_peer(pipe.recv())
        group.wait_peers([peer])
        group.receive_messages(lambda sender, message: group.send(sender, message[::-1]))
        while True:
            kind, *arguments = pipe.recv()
            if kind == "expect":
                immediate, count = arguments
                group.expect(immediate, count).wait()
                pipe.send(shared.array.tobytes())
            elif kind == "plain":
                pipe.send(plain.array.tobytes())
            elif kind == "write":
                target, immediate = arguments
                shared.array[:] = 77
                group.write(peer, shared, target, nbytes=target.nbytes, immediate=immediate).wait()
                pipe.send("written")


def exit_without_close():
    """Everything is registered and outstanding, nothing is closed; a child was forked."""
    fabric = engine.TransferEngine()
    a, b = fabric.add_group("a"), fabric.add_group("b")
    to_b = a.add_peer(b.address())
    a.wait_peers([to_b])
    source = a.register(np.zeros(1 << 20, np.uint8))
    target = b.register(np.zeros(1 << 20, np.uint8), memory.Access.REMOTE_WRITE)
    (immediate,) = b.allocate_immediates(1)
    b.receive_messages(lambda peer, message: None)
    a.send(to_b, b"x")
    watcher = fabric.watch(lambda old, new: watcher.store(new + 1))
    watcher.store(1)

    with warnings.catch_warnings():
        # What Python says since 3.12 of any fork with threads: here it is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(20)
        for use in (
            lambda: a.write(to_b, source, target.descriptor),
            lambda: b.expect(immediate),
            lambda: fabric.add_group("c"),
            lambda: fabric.watch(print),
            lambda: a.register(np.zeros(1)),
            lambda: b.allocate_immediates(1),
        ):
            try:
                use()
            except errors.FabricError as error:
                assert "belongs to the process that forked this one" in str(error), error
            else:
                raise AssertionError("a forked child used the engine")
        with engine.TransferEngine() as own:
            own.add_group("own")
        fabric.close()
        sys.exit(7)  # through atexit and garbage collection
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status

    never = b.expect(immediate, 5, timeout_s=100)
    never.add_done_callback(lambda ended: print("ended with", type(ended.error()).__name__))
    for _ in range(100):
        a.write(to_b, source, target.descriptor).add_done_callback(lambda ended: None)
    print("end of main")


def exit_with_stuck_callbacks():
    """Callbacks that never return must not keep the program from ending."""
    transfer_engine._EXIT_TIMEOUT_S = 0.3
    fabric = engine.TransferEngine()
    group = fabric.add_group()
    (immediate,) = group.allocate_immediates(1)
    stuck = threading.Barrier(3)

    def never_returns(*_):
        stuck.wait()
        while True:
            time.sleep(0.01)  # takes the GIL again and again

    group.expect(immediate, 0).add_done_callback(never_returns)
    watcher = fabric.watch(never_returns)
    watcher.store(1)
    stuck.wait(10)
    print("end of main")


def garbage():
    """Cycles through callbacks, and everything dropped in every order."""
    files = open_files()
    for order in range(8):
        fabric = engine.TransferEngine()
        a, b = fabric.add_group(), fabric.add_group()
        to_b = a.add_peer(b.address())
        source = a.register(np.zeros(1 << 16, np.uint8))
        target = b.register(np.zeros(1 << 16, np.uint8), memory.Access.REMOTE_WRITE)
        transfers = [a.write(to_b, source, target.descriptor) for _ in range(10)]
        transfers[0].add_done_callback(lambda ended, keep=(a, b): None)
        b.receive_messages(lambda peer, message, keep=to_b: None)
        watcher = fabric.watch(lambda old, new, keep=source: None)
        things = [fabric, a, b, source, target, transfers, watcher]
        del fabric, a, b, source, target, transfers, watcher
        rng = np.random.default_rng(order)
        while things:
            del things[rng.integers(len(things))]
            gc.collect()
    deadline = time.monotonic() + 20
    while native_threads() > baseline_threads or open_files() > files:
        assert time.monotonic() < deadline, (native_threads(), open_files(), files)
        time.sleep(0.01)
    print("end of main")


def run(*arguments):
    """Runs one of the programs above, with a deadline; returns how it ended."""
    return _run(__file__, *arguments)


def run_example(name):
    """Runs an example, with a deadline; returns how it ended."""
    return _run(Path(__file__).parent.parent / "examples" / name)


def _run(*arguments):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def open_files():
    return len(os.listdir("/proc/self/fd"))


def native_threads():
    return len(os.listdir("/proc/self/task"))


baseline_threads = native_threads()

if __name__ == "__main__":
    globals()[sys.argv[1]]()
