"""Expert-parallel programs on GPUs, each checked against a NumPy oracle that knows all ranks' data.

python tests/gpu/exchange_program.py --help

Started without --process it starts that many processes of itself, of which each sees the GPUs that
are its own; processes may share a GPU (under MPS, else each exchange takes milliseconds).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import socket
import subprocess
import sys
import time

import numpy as np

#: Layers of a timed program.
SCAN_LENGTH = 50
#: Ways of XLA to run a program, by name.
FLAGS = {
    "default": "",
    "no_graphs": "--xla_gpu_enable_command_buffer=",
    "all_graphs": "--xla_gpu_graph_min_graph_size=1 "
    "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUSTOM_CALL,WHILE,CONDITIONAL",
}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a layer; T tokens, H hidden, K choices, E experts, N ranks."""

    tokens: int
    hidden: int
    top_k: int
    experts: int
    ranks: int


def routing(sizes: Sizes, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x [N * T, H], experts [N * T, K], weights [N * T, K]; some choices lead nowhere."""
    random = np.random.default_rng(seed)
    rows = sizes.ranks * sizes.tokens
    x = random.standard_normal((rows, sizes.hidden)).astype(np.float32)
    experts = np.argsort(random.random((rows, sizes.experts)), axis=1)[:, : sizes.top_k]
    experts = experts.astype(np.int32)
    experts[random.random(experts.shape) < 0.1] = -1
    if seed % 3 == 0:
        silent = random.integers(sizes.ranks)
        experts[silent * sizes.tokens : (silent + 1) * sizes.tokens] = -1
    return x, experts, random.random(experts.shape).astype(np.float32)


def factor(experts: np.ndarray) -> np.ndarray:
    """What the expert multiplies a row by."""
    return np.where(experts < 0, 0, 1 + experts % 7).astype(np.float32)


class Checker:
    """The layer on the mesh, and what it must give."""

    def __init__(self, arguments: argparse.Namespace):
        """Starts JAX, and the fabric over all devices of all processes."""
        import jax
        import jax.numpy as jnp

        import jax_fabric as jf

        if arguments.processes > 1:
            jax.distributed.initialize(
                f"localhost:{arguments.port}",
                arguments.processes,
                arguments.process,
                local_device_ids=[int(each) for each in arguments.devices.split(",")],
            )
        self.jax, self.jnp = jax, jnp
        self.ranks = len(jax.devices())
        self.mesh = jax.make_mesh((self.ranks,), ("ep",))
        self.fabric = jf.Fabric(
            self.mesh, timeout_s=arguments.timeout_s, force_staged=arguments.force_staged
        )
        self.sizes = Sizes(
            arguments.tokens, arguments.hidden, arguments.top_k, arguments.experts, self.ranks
        )
        self.moe = jf.moe.ExpertParallel(
            self.fabric,
            axis_name="ep",
            num_experts=arguments.experts,
            top_k=arguments.top_k,
            max_tokens=arguments.tokens,
            private_tokens=arguments.private_tokens,
            hidden=arguments.hidden,
            dtype=jnp.bfloat16 if arguments.cases == "timed" else jnp.float32,
        )

    def put(self, array: np.ndarray, sharding=None):
        """[N, ...] over the axis, or as the sharding says, without a collective."""
        jax = self.jax
        sharding = sharding or jax.sharding.NamedSharding(self.mesh, jax.P("ep"))
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    def local(self, array, whole: np.ndarray):
        """Pairs of what this process has of an array and what it must be."""
        return [(np.asarray(shard.data), whole[shard.index]) for shard in array.addressable_shards]

    def layer(self, x, experts, weights):
        """One rank's layer: dispatch, experts, combine."""
        jnp, moe = self.jnp, self.moe
        received = moe.dispatch(x, experts, weights)
        ends = jnp.cumsum(received.group_sizes)
        rows = jnp.arange(received.tokens.shape[0])
        local = jnp.searchsorted(ends, rows, side="right")
        expert = self.jax.lax.axis_index("ep") * moe.config.experts_per_rank + local
        y = jnp.where(
            (rows < ends[-1])[:, None], received.tokens * (1 + expert % 7)[:, None], jnp.nan
        )
        return moe.combine(y, received)

    def shard_map(self, function, outputs: int = 1):
        """Over the axis, all operands and results split."""
        spec = self.jax.P("ep")
        out = spec if outputs == 1 else (spec,) * outputs
        return self.jax.jit(
            self.jax.shard_map(function, mesh=self.mesh, in_specs=spec, out_specs=out)
        )

    def expect(self, got, wanted: np.ndarray, what: str, tolerance: float = 2e-5) -> None:
        """Raises where a shard of this process differs."""
        for mine, whole in self.local(got, wanted):
            error = np.max(np.abs(mine - whole)) / max(1e-9, np.max(np.abs(whole)))
            if not error <= tolerance:
                raise AssertionError(f"{what}: relative error {error}")

    def forward(self, steps: int) -> None:
        """Fresh routing in every step; one compiled program."""
        step = self.shard_map(self.layer)
        for number in range(steps):
            x, experts, weights = routing(self.sizes, number)
            out = step(self.put(x), self.put(experts), self.put(weights))
            if number % max(1, steps // 50) == 0:
                total = (weights * factor(experts)).sum(1, keepdims=True)
                self.expect(out, x * total, f"step {number}")
        self.jax.block_until_ready(out)

    def gradients(self, steps: int) -> None:
        """Of x and of the weights."""
        jax, jnp = self.jax, self.jnp

        def both(x, experts, weights, g):
            def loss(x, weights):
                return jnp.sum(self.layer(x, experts, weights) * g)

            return jax.grad(loss, (0, 1))(x, weights)

        step = self.shard_map(both, 2)
        for number in range(steps):
            x, experts, weights = routing(self.sizes, number)
            g = routing(self.sizes, number + 1000)[0]
            dx, dw = step(*(self.put(each) for each in (x, experts, weights, g)))
            total = (weights * factor(experts)).sum(1, keepdims=True)
            self.expect(dx, g * total, f"dx of step {number}")
            self.expect(
                dw, factor(experts) * (x * g).sum(1, keepdims=True), f"dw of step {number}", 1e-4
            )

    def scan(self, steps: int) -> None:
        """Layers under lax.scan, whose slices and updates XLA likes to clone calls for."""
        jax = self.jax
        layers = 5

        def run(x, experts, weights):
            def body(x, operands):
                y = self.layer(x, *operands)
                return x + 0.01 * y, y

            return jax.lax.scan(body, x, (experts, weights))

        spec = jax.P("ep")
        step = jax.jit(
            jax.shard_map(
                run,
                mesh=self.mesh,
                in_specs=(spec, jax.P(None, "ep"), jax.P(None, "ep")),
                out_specs=(spec, jax.P(None, "ep")),
            )
        )
        sharding = jax.sharding.NamedSharding(self.mesh, jax.P(None, "ep"))
        for number in range(steps):
            each = [routing(self.sizes, number * layers + i) for i in range(layers)]
            experts, weights = (np.stack([part[i] for part in each]) for i in (1, 2))
            x, _ = step(
                self.put(each[0][0]), self.put(experts, sharding), self.put(weights, sharding)
            )
            wanted = each[0][0]
            for i in range(layers):
                total = (weights[i] * factor(experts[i])).sum(1, keepdims=True)
                wanted = wanted + 0.01 * wanted * total
            self.expect(x, wanted, f"scan {number}")

    def compiling(self, steps: int) -> None:
        """Another thread compiles and loads programs while this one exchanges."""
        import threading

        stop = threading.Event()

        def compile_on_and_on():
            number = 0
            while not stop.is_set():
                number += 1
                value = self.jnp.arange(64.0) + number
                self.jax.jit(lambda v, n=number: v * n + 0.5)(value).block_until_ready()

        thread = threading.Thread(target=compile_on_and_on)
        thread.start()
        try:
            self.forward(steps)
        finally:
            stop.set()
            thread.join()

    def silent(self, steps: int) -> None:
        """The last rank's process misses a call: the others get an error with its rank, and NaN."""
        del steps
        step = self.shard_map(self.layer)
        data = routing(self.sizes, 1)
        operands = [self.put(each) for each in data]
        step(*operands).block_until_ready()
        if self.jax.process_index() == self.jax.process_count() - 1:
            time.sleep(3 * self.fabric.timeout_s)
            return
        begin = time.monotonic()
        out = step(*operands).block_until_ready()
        seconds = time.monotonic() - begin
        for mine, _ in self.local(out, data[0]):
            assert np.isnan(mine).all(), "results without messages"
        time.sleep(0.1)
        try:
            self.fabric.check()
        except RuntimeError as error:
            assert f"waited {self.fabric.timeout_s:g} s for rank(s) {self.ranks - 1}" in str(
                error
            ), error
            assert seconds < 3 * self.fabric.timeout_s, seconds
            print(f"  after {seconds:.1f} s: {error}")
            return
        raise AssertionError("no error although a rank was silent")

    def closed(self, steps: int) -> None:
        """A program that was compiled before the fabric closed says so, or gives NaN."""
        step = self.shard_map(self.layer)
        data = routing(self.sizes, 1)
        operands = [self.put(each) for each in data]
        for _ in range(max(5, steps)):
            step(*operands).block_until_ready()
        self.fabric.close()
        for _ in range(5):
            try:
                out = step(*operands).block_until_ready()
            except self.jax.errors.JaxRuntimeError as error:
                assert "closed" in str(error), error
                continue
            for mine, _ in self.local(out, data[0]):
                assert np.isnan(mine).all(), "results of a closed fabric"

    def timed(self, steps: int) -> None:
        """Dispatch + combine of bfloat16 rows, with nothing in between, by the host's clock."""
        jax, jnp = self.jax, self.jnp

        def run(x, experts, weights):
            def body(x, _):
                received = self.moe.dispatch(x, experts, weights)
                return self.moe.combine(received.tokens, received) * 0.01, None

            return jax.lax.scan(body, x, None, length=SCAN_LENGTH)[0]

        step = self.shard_map(run)
        x, experts, weights = routing(self.sizes, 1)
        operands = [self.put(each) for each in (x.astype(jnp.bfloat16), experts, weights)]
        times = []
        for _ in range(max(5, steps)):
            begin = time.perf_counter()
            step(*operands).block_until_ready()
            times.append((time.perf_counter() - begin) / SCAN_LENGTH * 1e6)
        if self.jax.process_index() == 0:
            median, rest = np.median(times[1:]), len(times) - 1
            print(
                f"  dispatch + combine in {median:.1f} us (median of {rest} scans of {SCAN_LENGTH})"
            )


CASES = ("forward", "gradients", "scan", "compiling", "silent", "closed", "timed")


def run_cases(arguments: argparse.Namespace) -> None:
    """This process's part of all cases."""
    checker = Checker(arguments)
    for case in arguments.cases.split(","):
        begin = time.monotonic()
        getattr(checker, case)(arguments.steps)
        if arguments.process == 0:
            print(f"{case}: passed in {time.monotonic() - begin:.1f} s", flush=True)
    if not {"silent", "closed"} & set(arguments.cases.split(",")):
        checker.fabric.check()
    checker.fabric.close()


def start(arguments: argparse.Namespace) -> int:
    """All processes, and the exit code of the first that fails."""
    with socket.socket() as server:
        server.bind(("localhost", 0))
        port = server.getsockname()[1]
    gpus = arguments.gpus
    children = []
    for process in range(arguments.processes):
        environment = dict(os.environ)
        share = gpus / max(gpus, arguments.processes)
        environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.8 * share:.3f}"
        environment["XLA_FLAGS"] = FLAGS[arguments.flags]
        own = range(gpus) if arguments.processes == 1 else [process % gpus]
        mine = [f"--process={process}", f"--port={port}", f"--devices={','.join(map(str, own))}"]
        command = [sys.executable, *sys.argv, *mine]
        children.append(subprocess.Popen(command, env=environment))
    deadline = time.monotonic() + arguments.limit_s
    failed = 0
    for child in children:
        try:
            failed = child.wait(max(1, deadline - time.monotonic())) or failed
        except subprocess.TimeoutExpired:
            failed = 1
            print(f"process {child.args[-3]} did not end in {arguments.limit_s} s", flush=True)
            child.kill()
    return failed


def main() -> int:
    """Parses arguments and runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", default="forward,gradients,scan", help=f"of {', '.join(CASES)}")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=1, help="of this machine, to share out")
    parser.add_argument(
        "--force-staged", action="store_true", help="messages go through host memory"
    )
    parser.add_argument("--flags", choices=FLAGS, default="default", help="how XLA runs programs")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--private-tokens", type=int, default=None)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--top-k", type=int, default=4)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--timeout-s", type=float, default=30.0)
    parser.add_argument("--limit-s", type=float, default=120.0, help="for all processes together")
    parser.add_argument("--process", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--devices", default="0", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process < 0:
        return start(arguments)
    run_cases(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
