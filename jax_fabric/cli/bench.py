"""``jax-fabric bench``: jax_fabric beside other libraries, in one run."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from jax_fabric.bench.config import PEERS, MoeBenchConfig

_MOE_DESCRIPTION = """\
Times MoE dispatch and combine around an expert that does nothing, with another routing in every
call, in turn with the same exchange by other means; and how many bytes move, how long the processor
takes to copy as many, and what a call costs that moves almost none.

In one process the other means are lax.all_to_all between its CPU devices. In several (--processes),
with one rank each, they are lax.all_to_all over jax.distributed with gloo, and mpi4jax on Open MPI
where benchmarks/peers/setup mpi4jax has made its environment. Of each there are two: one with the
very results of jax_fabric, and a "lean" one, which leaves out what only real experts need.
"""

_MOE_EPILOG = """\
examples:
  jax-fabric bench moe                                8 ranks in this process
  jax-fabric bench moe --processes 2                  2 ranks in 2 processes
  jax-fabric bench moe --quick --json rows.json       less than a minute
"""

# What --quick starts from; other flags still count.
_QUICK = dict(hidden=1024, tokens=64, repetitions=5, small_repetitions=50, small_peers=False)

# flag, field of MoeBenchConfig, help.
_NUMBERS = (
    ("--processes", "processes", "processes that share the ranks; must divide them"),
    ("--tokens", "tokens", "tokens of each rank"),
    ("--hidden", "hidden", "elements of a token's row"),
    ("--top-k", "top_k", "experts of each token"),
    ("--experts", "experts", "experts over all ranks"),
    ("--private-tokens", "private_tokens", "rows from rank to rank at once; None: tokens"),
    ("--repetitions", "repetitions", "timed calls of each contender"),
    ("--seed", "seed", "of rows and routings"),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``bench`` and the benchmarks under it."""
    parser = subparsers.add_parser(
        "bench", help="measure beside other libraries", description=__doc__
    )
    benchmarks = parser.add_subparsers(metavar="benchmark", required=True)
    _add_moe(benchmarks)


def _add_moe(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "moe",
        help="dispatch and combine",
        description=_MOE_DESCRIPTION,
        epilog=_MOE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = MoeBenchConfig()
    parser.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help=f"devices (default: {defaults.ranks} in one process, else one in each process)",
    )
    for flag, field, text in _NUMBERS:
        quick = f", {_QUICK[field]} with --quick" if field in _QUICK else ""
        help_text = f"{text} (default: {getattr(defaults, field)}{quick})"
        parser.add_argument(flag, dest=field, type=int, metavar="N", help=help_text)
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help=f"of the rows (default: {defaults.dtype})",
    )
    parser.add_argument(
        "--dispatch-dtype",
        choices=("float8_e4m3fn",),
        help="of jax_fabric's rows on their way to the experts (default: that of the rows)",
    )
    parser.add_argument(
        "--peer",
        dest="peers",
        action="append",
        choices=PEERS,
        help="measure beside this one; may be given again (default: all that can run)",
    )
    parser.add_argument("--quick", action="store_true", help="smaller, and fewer repetitions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows to FILE")
    parser.add_argument(
        "--environments",
        type=Path,
        metavar="FOLDER",
        help="where the environments of peers lie (default: benchmarks/peers of the source)",
    )
    parser.set_defaults(run=lambda arguments: _run_moe(parser, arguments))


def _run_moe(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    fields = {field.name for field in dataclasses.fields(MoeBenchConfig)}
    given = {k: v for k, v in vars(arguments).items() if k in fields and v is not None}
    if arguments.json and not arguments.json.absolute().parent.is_dir():
        # Now rather than after the run.
        parser.error(f"{arguments.json}: there is no folder {arguments.json.parent}")

    from jax_fabric.bench import moe

    processes = given.get("processes", 1)
    if processes != 1:
        given.setdefault("ranks", processes)
    peers = given.get("peers") or moe.available_peers(processes, arguments.environments)
    if processes != 1 and given["ranks"] != processes and "peers" not in given:
        peers = ("gloo",)  # mpi4jax has one rank in each process
    try:
        config = MoeBenchConfig(
            **((_QUICK if arguments.quick else {}) | given | {"peers": tuple(peers)})
        )
    except ValueError as error:
        parser.error(str(error))
    return moe.main(config, arguments.json, arguments.environments)
