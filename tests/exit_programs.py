"""What the processes of exit_test run."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from failures_programs import meet, wait_for_end
from jax.sharding import PartitionSpec as P
from processes_testing import HIDDEN, TOKENS, TOP_K, Inputs, Ranks, layer, ranks

import jax_fabric as jf
from jax_fabric.testing.environment import prepare_cpu

LONG_S = 100.0  # no test waits for it


def open_ranks(timeout_s: float = LONG_S) -> tuple[jf.Fabric, Ranks, Inputs]:
    """A fabric over all devices that nobody closes."""
    inputs = Inputs(len(jax.devices()))
    fabric = jf.Fabric(jax.make_mesh((inputs.ranks,), ("ep",)), timeout_s=timeout_s)
    moe = jf.moe.ExpertParallel(
        fabric,
        axis_name="ep",
        num_experts=inputs.experts_in_all,
        top_k=TOP_K,
        max_tokens=TOKENS,
        hidden=HIDDEN,
        dtype=jnp.float32,
    )
    return fabric, Ranks(fabric.mesh, moe, P("ep")), inputs


def start(on: Ranks, inputs: Inputs) -> jax.Array:
    """A layer whose result is not waited for.

    XLA:CPU runs a program of very few operations on the thread that calls it, and waits there: the
    products, of identities, make it one that runs aside, as every real one does.
    """

    def f(x, e, w):
        x = layer(on.moe, x, e, w, 2.0)
        wide = jnp.eye(HIDDEN, 64) + 0 * x[0, 0]
        return ((x @ wide) @ (wide.T @ wide)) @ wide.T

    return on.run(f, *inputs.arrays())


# --- one process: `python exit_programs.py NAME`


def without_close() -> None:
    _, on, inputs = open_ranks()
    on.assert_equal(start(on, inputs), inputs.layers(2.0))
    start(on, inputs)


def exception_inside() -> None:
    fabric, on, inputs = open_ranks()
    with fabric:
        start(on, inputs)
        raise KeyError("of the user")


def fork() -> None:
    fabric, on, inputs = open_ranks()
    with fabric:
        on.assert_equal(start(on, inputs), inputs.layers(2.0))
        begin = time.monotonic()
        child = os.fork()
        if child == 0:
            # As multiprocessing ends its children; JAX itself does not survive sys.exit in one.
            fabric.close()
            del fabric, on
            gc.collect()
            os._exit(7)
        status = 0
        while time.monotonic() < begin + 20:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.01)
        else:
            os.kill(child, signal.SIGKILL)
            raise AssertionError("the child hangs")
        assert os.waitstatus_to_exitcode(status) == 7, status
        # The parent does not notice.
        on.assert_equal(start(on, inputs), inputs.layers(2.0))


# --- two processes


@contextlib.contextmanager
def signalled(number: int, after_s: float = 1.0) -> Iterator[None]:
    """This process gets a signal in a while."""
    timer = threading.Timer(after_s, os.kill, (os.getpid(), number))
    timer.start()
    try:
        yield
    finally:
        timer.join()


def leaving() -> dict[str, Any]:
    """Ways to leave a fabric while another rank is somewhere else; process 1 is the absent one."""
    first = jax.process_index() == 0
    found: dict[str, Any] = {}

    # Ctrl-C in an exchange.
    begin = time.monotonic()
    fabric, on, inputs = open_ranks()
    on.assert_equal(start(on, inputs), inputs.layers(2.0))
    if first:
        try:
            with signalled(signal.SIGINT), fabric:
                begin = time.monotonic()
                jax.block_until_ready(start(on, inputs))
        except KeyboardInterrupt:
            found["interrupted"] = time.monotonic() - begin
    meet("interrupted", [0, 1])
    fabric.close()
    fabric.close()

    # An exception while an exchange waits: it, and nothing else, comes out.
    fabric, on, inputs = open_ranks()
    if first:
        begin = time.monotonic()
        try:
            with fabric:
                start(on, inputs)
                raise KeyError("of the user")
        except KeyError as error:
            found["error"] = str(error)
            found["error_seconds"] = time.monotonic() - begin
            found["context"] = repr(error.__context__)
    meet("error", [0, 1])
    fabric.close()

    # Ctrl-C while the other process has not made its context.
    if first:
        begin = time.monotonic()
        try:
            with signalled(signal.SIGINT):
                open_ranks()
        except KeyboardInterrupt:
            found["interrupted_opening"] = time.monotonic() - begin
    else:
        # It counts, too.
        jf.Fabric(jax.make_mesh((2,), ("ep",))).close()
    meet("opening", [0, 1])

    # One leaves as soon as it has what it wanted; the other one is slow to take it.
    for i in range(10):
        inputs = Inputs(2)
        with ranks(inputs) as on:
            f = on.jit(lambda x, e, w, moe=on.moe: layer(moe, x, e, w, 2.0))
            f = f.lower(*map(on.place, inputs.arrays())).compile()
            if not first:
                time.sleep(0.02 * (i % 3))
            got = jax.block_until_ready(f(*map(on.place, inputs.arrays())))
        on.assert_equal(got, inputs.layers(2.0))
    fabric, on, inputs = open_ranks(timeout_s=2.0)
    on.assert_equal(start(on, inputs), inputs.layers(2.0))
    if first:
        fabric.close()
    meet("left", [0, 1])
    if not first:
        begin = time.monotonic()
        try:
            jax.block_until_ready(start(on, inputs))
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            found["left"] = str(error)
        found["left_seconds"] = time.monotonic() - begin
        fabric.close()
    meet("done", [0, 1])

    # The end of the program while an exchange waits, and nobody closes anything.
    fabric, on, inputs = open_ranks()
    if first:
        found["kept"] = start(on, inputs).shape
    meet("end", [0, 1])
    found["end"] = time.monotonic()
    globals()["_never_closed"] = fabric
    return found


def terminated() -> float:
    """Process 1 gets SIGTERM while it waits; seconds until it was gone."""
    # JAX would catch the signal, and end the other process.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_enable_recoverability", True)
    jax.distributed.initialize(
        coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"],
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
        process_id=int(os.environ["JAX_PROCESS_ID"]),
        shutdown_timeout_seconds=2,
    )
    fabric, on, inputs = open_ranks()
    with fabric:
        on.assert_equal(start(on, inputs), inputs.layers(2.0))
        client = jax._src.distributed.global_state.client
        if jax.process_index() == 1:
            client.key_value_set("test/pid", str(os.getpid()))
            with signalled(signal.SIGTERM):
                jax.block_until_ready(start(on, inputs))
        pid = client.blocking_key_value_get("test/pid", 60_000)
        return wait_for_end(int(pid))


# --- resources


def resources() -> dict[str, float]:
    """Threads, open files and mappings of this process, and its memory in MiB."""
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    with open("/proc/self/maps") as file:
        maps = sum("memfd" in line or "/dev/shm" in line for line in file)
    return {
        "threads": int(status["Threads"]),
        "files": len(os.listdir("/proc/self/fd")),
        "maps": maps,
        "resident": int(status["VmRSS"].split()[0]) / 1024,
        "size": int(status["VmSize"].split()[0]) / 1024,
    }


def many_fabrics() -> None:
    """Prints what 30 fabrics leave behind, after a few to warm up."""
    mesh = jax.make_mesh((4,), ("ep",))

    def one(i: int) -> None:
        with jf.Fabric(mesh) as fabric:
            moe = jf.moe.ExpertParallel(
                fabric,
                axis_name="ep",
                num_experts=4,
                top_k=1,
                max_tokens=512,
                hidden=1024,
                dtype=jnp.float32,
            )
            assert moe.memory_bytes() > 16 << 20
            if i % 5:
                return

            # Every page of the slots is written now and then.
            def f(x):
                r = moe.dispatch(x, jnp.zeros((512, 1), jnp.int32), jnp.ones((512, 1)))
                return moe.combine(r.tokens, r)

            on = Ranks(mesh, moe, P("ep"))
            x = np.ones((4, 512, 1024), np.float32)
            on.assert_equal(on.run(f, x), x)

    for i in range(6):
        one(i)
    before = resources()
    for i in range(30):
        one(i)
    after = resources()
    print({name: after[name] - before[name] for name in before})


if __name__ == "__main__":
    prepare_cpu(4)
    globals()[sys.argv[1]]()
