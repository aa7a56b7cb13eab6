"""Expert-parallel programs on GPUs, each checked against a NumPy oracle that knows all ranks' data.

python tests/gpu/exchange_program.py --help

Started without --process it starts that many processes of itself, of which each sees the GPUs that
are its own; processes may share a GPU (under MPS, else each exchange takes milliseconds).
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time

#: Ways of XLA to run a program, by name.
FLAGS = {
    "default": "",
    "no_graphs": "--xla_gpu_enable_command_buffer=",
    "all_graphs": "--xla_gpu_graph_min_graph_size=1 "
    "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUSTOM_CALL,WHILE,CONDITIONAL",
}
#: Cases by the module that has them.
CASES = {
    "layer_cases": (
        *("forward", "gradients", "scan", "split", "two_batches"),
        *("quantised", "memory", "compiling", "timed"),
    ),
    "transform_cases": ("vmap", "donated", "profiled", "counted", "watched"),
    "failure_cases": ("silent", "killed", "misused", "closed"),
    "recovery_cases": ("recovered",),
}


def run_cases(arguments: argparse.Namespace) -> None:
    """This process's part of all cases."""
    import importlib

    from checker import Checker

    checker = Checker(arguments)
    modules = {case: module for module, cases in CASES.items() for case in cases}
    cases = arguments.cases.split(",")
    for case in cases:
        begin = time.monotonic()
        getattr(importlib.import_module(modules[case]), case)(checker, arguments.steps)
        if arguments.process == 0:
            print(f"{case}: passed in {time.monotonic() - begin:.1f} s", flush=True)
    if not set(CASES["failure_cases"] + CASES["recovery_cases"]) & set(cases):
        checker.fabric.check()
    checker.fabric.close()


def start(arguments: argparse.Namespace) -> int:
    """All processes, and the exit code of the first that fails."""
    with socket.socket() as server:
        server.bind(("localhost", 0))
        port = server.getsockname()[1]
    gpus = arguments.gpus

    def begin(process: int, *more: str) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        share = gpus / max(gpus, arguments.processes)
        environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.8 * share:.3f}"
        environment["XLA_FLAGS"] = FLAGS[arguments.flags]
        own = range(gpus) if arguments.processes == 1 else [process % gpus]
        mine = [f"--process={process}", f"--port={port}", f"--devices={','.join(map(str, own))}"]
        return subprocess.Popen([sys.executable, *sys.argv, *mine, *more], env=environment)

    children = [begin(process) for process in range(arguments.processes)]
    deadline = time.monotonic() + arguments.limit_s

    def ends(child: subprocess.Popen[bytes], wanted: int = 0) -> bool:
        try:
            code = child.wait(max(1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            print(f"{child.args} did not end in {arguments.limit_s} s", flush=True)
            child.kill()
            return False
        if code != wanted:
            print(f"{child.args} ended with {code}, and not {wanted}", flush=True)
        return code == wanted

    cases, good = arguments.cases.split(","), True
    if "killed" in cases or "recovered" in cases:
        good = ends(children.pop(), -signal.SIGKILL)
    if "recovered" in cases:
        children.append(begin(arguments.processes - 1, "--is-back"))
    for child in children:
        good = ends(child) and good
    return 0 if good else 1


def _cases(text: str) -> str:
    known = [case for cases in CASES.values() for case in cases]
    for case in text.split(","):
        if case not in known:
            raise argparse.ArgumentTypeError(f"{case!r} is none of {', '.join(known)}")
    return text


def main() -> int:
    """Parses arguments and runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--cases",
        type=_cases,
        default="forward,gradients,scan,split",
        help="; ".join(", ".join(cases) for cases in CASES.values()),
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=1, help="of this machine, to share out")
    parser.add_argument(
        "--force-staged", action="store_true", help="messages go through host memory"
    )
    parser.add_argument(
        "--node-processes",
        type=int,
        default=0,
        help="of a node, as which they are taken; 1: all rows go by NICs; default: as it is",
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
    parser.add_argument("--measured", metavar="FILE", help="to which timed adds a line of JSON")
    parser.add_argument("--process", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--devices", default="0", help=argparse.SUPPRESS)
    parser.add_argument("--is-back", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process < 0:
        return start(arguments)
    run_cases(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
