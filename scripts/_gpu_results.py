"""Tables of scripts/gpu_check.sh: of one part, and of all parts of a run for benchmarks/results."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PARTS = (
    *("smoke", "correct", "programs", "processes"),
    *("failures", "nic", "hybrid", "sanitize", "speed"),
)

_EXPLANATION = """\
Kernel times: from the beginning of the first block to the end of the last one by the device's
global timer, inside a CUDA graph that empties the caches before each run, another routing in every
run (`csrc/kernels/cuda/kernels_benchmark.cc`); the copy kernel is measured the same way; `by
events` includes the launch. Between device and host: `csrc/moe/cuda/signals_benchmark.cc`
and `csrc/moe/cuda/proxy_benchmark.cc`, by the host's clock; floors are those of kernels that do
nothing but to post a number or to wait for one, in the same run; the floor of the 56 writes is a
thread that waits by the clock for as long as they take, so that its tail is the machine's own. All
ranks on one GPU: processes that share it by MPS, scans of dispatch + combine by the host's clock;
beside them one process that has all tokens and computes the same in plain JAX, without any
exchange (`tests/gpu/layer_cases.py`).
"""

# File -> heading of each field that is shown.
_TABLES = {
    "signals.jsonl": {
        "case": "between device and host",
        "median": "us (p50)",
        "p99": "p99",
        "p999": "p99.9",
        "min": "min",
        "max": "max",
        "n": "n",
    },
    "layers.jsonl": {
        "case": "all ranks on one GPU",
        "ranks": "ranks",
        "tokens": "tokens",
        "median": "us (p50)",
        "min": "min",
        "max": "max",
        "n": "n",
        "bytes": "bytes moved",
        "peer": "beside it, alone on the GPU",
        "peer_us": "us",
        "ratio": "times better than it",
    },
    "kernels.jsonl": {
        "case": "kernel",
        "ranks": "ranks",
        "tokens": "tokens",
        "type": "rows in",
        "median": "us (p50)",
        "p99": "p99",
        "copy_us": "a copy of the bytes, us",
        "ratio": "times better than it",
        "event_us": "by events, us",
        "GB_s": "GB/s",
    },
}


def rows(path: Path) -> list[dict[str, object]]:
    """Returns the measurements in a file, one JSON object a line; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tables(folder: Path) -> str:
    """Returns the measurements of one part in Markdown."""
    text = ""
    for name, fields in _TABLES.items():
        measured = rows(folder / name)
        if not measured:
            continue
        text += "\n| " + " | ".join(fields.values()) + " |\n"
        text += "|" + " --- |" * len(fields) + "\n"
        for row in measured:
            text += "| " + " | ".join(str(row[field]) for field in fields) + " |\n"
    return text


def figures(folder: Path) -> list[dict[str, object]]:
    """Returns the measurements of one part as the rows of all benchmarks (jax_fabric/bench)."""
    found = []
    for row in rows(folder / "kernels.jsonl"):
        sizes = f"EP{row['ranks']}, T {row['tokens']}, H {row['hidden']}, rows in {row['type']}"
        found.append(
            {"bench": "gpu kernels", "case": f"{row['case']}, {sizes}"}
            | {"peer": "a copy of the bytes", "ratio": row["ratio"]}
            | {key: row[key] for key in ("metric", "unit", "median", "min", "max", "n")}
        )
    for row in rows(folder / "layers.jsonl"):
        found.append(
            {"bench": "gpu layers", "case": f"{row['case']}, EP{row['ranks']}, T {row['tokens']}"}
            | {key: row[key] for key in ("peer", "ratio")}
            | {key: row[key] for key in ("metric", "unit", "median", "min", "max", "n")}
        )
    for row in rows(folder / "signals.jsonl"):
        alone = {"bench": "gpu signals", "case": row["case"], "peer": "", "ratio": None}
        kept = ("metric", "unit", "median", "min", "max", "n")
        found.append(alone | {key: row[key] for key in kept})
        for share in ("p99", "p999"):
            value = {key: row[share] for key in ("median", "min", "max")}
            metric = {"metric": f"{row['metric']}, {share}", "unit": row["unit"], "n": row["n"]}
            found.append(alone | metric | value)
    return found


def merge(folder: Path, name: str) -> int:
    """Writes benchmarks/results/DATE-gpu-NAME.md and .json from the folders of all parts."""
    found = [part for part in PARTS if (folder / part / f"{part}.md").exists()]
    heads = {part: (folder / part / f"{part}.md").read_text().splitlines() for part in found}
    if not found:
        print(f"gpu_check: --merge {folder}: must hold PART/PART.md, got none", file=sys.stderr)
        return 2
    commits = {part: lines[0].rsplit(" ", 1)[-1] for part, lines in heads.items()}
    several = len(set(commits.values())) > 1
    gpu = heads[found[0]][2]
    date = datetime.date.today().isoformat()
    commit = "commits as each part says" if several else f"commit {commits[found[0]]}"
    text = f"# scripts/gpu_check.sh, {date}\n\n{gpu}, {commit}.\n\n{_EXPLANATION}"
    for part, lines in heads.items():
        title = f"{part} (commit {commits[part]})" if several else part
        text += f"\n## {title}\n\n" + "\n".join(lines[4:]).strip() + "\n"
    out = RESULTS / f"{date}-gpu-{name}"
    out.with_suffix(".md").write_text(text)
    measured = [each for part in found for each in figures(folder / part)]
    lines = ",\n".join(f"  {json.dumps(each)}" for each in measured)
    out.with_suffix(".json").write_text(f"[\n{lines}\n]\n")
    print(f"gpu_check: {out.with_suffix('.md').relative_to(ROOT)} and .json, of {', '.join(found)}")
    return 0


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of one part; with --merge: of all parts")
    parser.add_argument("--merge", metavar="NAME", help="of the machine, for the files' names")
    args = parser.parse_args()
    if args.merge:
        return merge(args.folder, args.merge)
    print(tables(args.folder), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
