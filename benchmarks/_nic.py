"""benchmarks/record --bench nic: the domains of NICs beside raw loops over the same libraries."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jax_fabric.bench.rows import OF_THE_PEER, Row, row

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "bazel-bin" / "csrc" / "benchmarks"

_BENCH = "nic"
_PROVIDERS = ("tcp;ofi_rxm", "shm")
_SCATTER_CASE = "posting a write of a scatter to 56 peers, to a domain that only counts"
_VM_CASE = "connectx over soft-RoCE in an emulated machine"
# "RDMA Point-to-Point Communication for LLM Systems", arXiv 2510.27656: a peer of a scatter, with
# the NIC's own post.
_PAPER_NS = {"ConnectX-7": 150.0, "EFA": 500.0}
# Between these two nothing differs but the number of scatters: connecting falls out.
_FEW_ROUNDS, _MANY_ROUNDS = 200, 1200
_VM_BANDWIDTH_BYTES = 1 << 20


def measure(repetitions: int, *, virtual_machine: bool) -> list[Row]:
    """Builds the programs, runs them one after the other, and returns the rows.

    Args:
      repetitions: timed runs of each contender.
      virtual_machine: connectx, too, in the machine of scripts/soft_roce.

    Raises:
      FileNotFoundError: valgrind, or perftest for the virtual machine, is not installed.
      subprocess.CalledProcessError: a program failed.
    """
    _require("valgrind", "valgrind")
    if virtual_machine:
        _require("ib_write_bw", "perftest")
    bazel = os.environ.get("BAZEL") or ("bazel" if shutil.which("bazel") else "bazelisk")
    targets = ["//csrc/benchmarks:nic_benchmark", "//csrc/benchmarks:scatter_benchmark"]
    subprocess.run([bazel, "build", "--config=ci", "--//:unity", *targets], cwd=ROOT, check=True)
    before = os.getloadavg()[0]
    rows = []
    for provider in _PROVIDERS:
        rows += comparisons(
            _lines(_nic_benchmark(provider, repetitions)), f"efa over {provider}", "raw libfabric"
        )
    rows += _scatter(repetitions)
    if virtual_machine:
        rows += _in_virtual_machine(repetitions)
    load = [before, os.getloadavg()[0]]
    return [*rows, row(_BENCH, "the machine", "load average of 1 min", "threads", load)]


def comparisons(lines: Iterable[dict[str, Any]], over: str, raw: str) -> list[Row]:
    """Returns what the domain and the engine reach beside a raw loop.

    Args:
      lines: what nic_benchmark prints.
      over: what it ran over, for the cases.
      raw: the contender to compare with.
    """
    seconds: dict[str, dict[str, dict[str, Any]]] = {}
    for line in lines:
        seconds.setdefault(line["case"], {})[line["contender"]] = line
    rows = []
    for case, contenders in seconds.items():
        theirs = contenders.pop(raw)
        for name, ours in contenders.items():
            large = ours["write_bytes"] >= 1 << 20
            # GB, or million writes.
            amount = ours["writes"] * (ours["write_bytes"] * 1e-9 if large else 1e-6)
            unit = "GB/s" if large else "million/s"
            metric = f"rate of the {name}"
            ratios = [t / o for t, o in zip(theirs["seconds"], ours["seconds"], strict=True)]
            rates = [amount / each for each in ours["seconds"]]
            rows.append(
                row(_BENCH, f"{over}: {case}", metric, unit, rates, peer=raw, ratios=ratios)
            )
            rates = [amount / each for each in theirs["seconds"]]
            rows.append(row(_BENCH, f"{over}: {case}", metric + OF_THE_PEER, unit, rates, peer=raw))
    return rows


def instructions(callgrind: str) -> int:
    """Returns how many instructions callgrind says that it has counted.

    Raises:
      ValueError: it says nothing of the kind.
    """
    found = re.search(r"Collected : (\d+)", callgrind)
    if found is None:
        raise ValueError(f"callgrind counted nothing: {callgrind[-500:]}")
    return int(found.group(1))


def _require(program: str, package: str) -> None:
    if shutil.which(program) is None:
        raise FileNotFoundError(f"{program} is not there: apt-get install {package}")


def _nic_benchmark(over: str, repetitions: int, *flags: str) -> list[str]:
    program = str(PROGRAMS / "nic_benchmark")
    return [program, *flags, "--over", over, "--repetitions", str(repetitions)]


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def _lines(command: Sequence[str]) -> list[dict[str, Any]]:
    return [json.loads(each) for each in _output(command).splitlines() if each.startswith("{")]


def _scatter(repetitions: int) -> list[Row]:
    program = str(PROGRAMS / "scatter_benchmark")
    print("scatter to 56 peers", file=sys.stderr, flush=True)
    runs = [_lines([program])[0] for _ in range(repetitions)]
    counts = [_count_instructions(program, rounds) for rounds in (_FEW_ROUNDS, _MANY_ROUNDS)]
    each = (counts[1] - counts[0]) / (_MANY_ROUNDS - _FEW_ROUNDS) / runs[0]["peers"]
    rows = [
        row(_BENCH, _SCATTER_CASE, metric, "ns", [run[key] for run in runs])
        for metric, key in (
            ("from its post to the next one's", "post_ns_per_write"),
            ("with its share of submitting and completing", "round_ns_per_write"),
        )
    ]
    metric = "instructions, with its share of submitting and completing"
    rows.append(row(_BENCH, _SCATTER_CASE, metric, "instructions", [each]))
    for nic, ns in _PAPER_NS.items():
        metric = f"the paper's, {nic}, with the NIC's own post"
        rows.append(row(_BENCH, _SCATTER_CASE, metric, "ns", [ns]))
    return rows


def _count_instructions(program: str, rounds: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/counts"]
        done = subprocess.run(
            [*command, program, "--rounds", str(rounds)], check=True, capture_output=True, text=True
        )
    return instructions(done.stderr)


def _in_virtual_machine(repetitions: int) -> list[Row]:
    machine = [str(ROOT / "scripts" / "soft_roce"), "--timeout=900"]
    lines = _lines([*machine, *_nic_benchmark("rdma", repetitions, "--quick")])
    rows = comparisons(lines, _VM_CASE, "raw verbs")
    # Four under way, as in the other loops.
    test = f"ib_write_bw -F -p 18515 -s {_VM_BANDWIDTH_BYTES} -n {4 * repetitions} -t 4 --cq-mod=1"
    script = f"{test} -d rxe1 >/dev/null & sleep 5; {test} -d rxe0 localhost"
    text = _output([*machine, "sh", "-c", script])
    rates = [
        float(each.split()[3]) * (1 << 20) / 1e9
        for each in text.splitlines()
        if each.split()[:1] == [str(_VM_BANDWIDTH_BYTES)]
    ]
    if not rates:
        raise ValueError(f"{shlex.quote(test)} says no rate: {text[-500:]}")
    case = f"{_VM_CASE}: writes of 1 MiB"
    return [*rows, row(_BENCH, case, "rate of ib_write_bw, by itself", "GB/s", rates)]
