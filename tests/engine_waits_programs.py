"""What the processes of engine_waits_test run: waits of the host API that get a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

from jax_fabric import engine, memory

LONG_S = 100.0  # no test waits for it


def seconds_until_interrupted(wait: Callable[[], None]) -> float:
    """Sends SIGINT to this process while it waits."""
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    begin = time.monotonic()
    timer.start()
    try:
        wait()
    except KeyboardInterrupt:
        return time.monotonic() - begin
    finally:
        timer.join()
    raise AssertionError("the wait ended by itself")


def stopped() -> None:
    """A group in a process that stands still as soon as it has said its address."""
    group = engine.TransferEngine().add_group("stopped")
    print(group.address().hex(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def interrupted() -> None:
    """Every kind of wait, for what does not come; the engine is as good as before."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started this may ignore it
    command = [sys.executable, __file__, "stopped"]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = bytes.fromhex(other.stdout.readline())
        _, status = os.waitpid(other.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), status
        with engine.TransferEngine(timeout_s=LONG_S) as fabric:
            group = fabric.add_group("a")
            (immediate,) = group.allocate_immediates(1)
            expectation = group.expect(immediate)
            print("expectation", seconds_until_interrupted(expectation.wait))
            silent = group.add_peer(address)
            print("peers", seconds_until_interrupted(lambda: group.wait_peers([silent])))
            transfer = group.send(silent, b"x")
            print("transfer", seconds_until_interrupted(transfer.wait))
            assert not expectation.done() and not transfer.done()
            # What was waited for goes on, and so does everything else.
            own = group.add_peer(group.address())
            target = group.register(np.zeros(8, np.uint8), memory.Access.REMOTE_WRITE)
            group.barrier([engine.BarrierTarget(own, target.descriptor, immediate)]).wait()
            expectation.wait()
    finally:
        other.kill()
        other.wait()
    print("end of main")


def terminated() -> None:
    """SIGTERM while this rank waits in a barrier for one that does not come."""
    group = engine.TransferEngine(timeout_s=LONG_S).add_group("a")
    own = group.add_peer(group.address())
    target = group.register(np.zeros(8, np.uint8), memory.Access.REMOTE_WRITE)
    (immediate,) = group.allocate_immediates(1)
    group.barrier([engine.BarrierTarget(own, target.descriptor, immediate)]).wait()
    everybody = group.expect(immediate, 2)
    print("waits", flush=True)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    everybody.wait()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
