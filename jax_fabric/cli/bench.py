"""``jax-fabric bench``: jax_fabric beside other libraries, in one run."""

from __future__ import annotations

import argparse
from pathlib import Path

from jax_fabric.bench.config import PEERS, MoeBenchConfig
from jax_fabric.bench.transfer_config import TRANSFER_PEERS, TransferBenchConfig
from jax_fabric.cli.arguments import add_numbers, check_folders, given_fields

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

_TRANSFER_DESCRIPTION = """\
Writes between two processes of this machine, as jax_fabric.engine makes them: the rate of single
writes beside memcpy between two shared mappings, pages at random places, the time of one way, and
how long a request takes to be posted. Beside NIXL (UCX over shared memory), in the same run, where
benchmarks/peers/setup nixl has made its environment.
"""

_TRANSFER_EPILOG = """\
examples:
  jax-fabric bench transfer                           everything, beside NIXL where it is
  jax-fabric bench transfer --peer nixl               fails where NIXL's environment is not there
  jax-fabric bench transfer --quick --json rows.json  less than a minute
"""

# What --quick starts from; other flags still count.
_QUICK = dict(hidden=1024, tokens=64, repetitions=5, small_repetitions=50, small_peers=False)

_QUICK_TRANSFER = dict(
    write_mib=(1, 16),
    page_kib=(4, 64),
    large_batch_mib=16,
    repetitions=3,
    round_trips=200,
)

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

# The same for TransferBenchConfig.
_TRANSFER_NUMBERS = (
    ("--repetitions", "repetitions", "timed runs of each contender"),
    ("--round-trips", "round_trips", "of each run of the latency measurements"),
    ("--seed", "seed", "of the order of pages"),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``bench`` and the benchmarks under it."""
    parser = subparsers.add_parser(
        "bench",
        help="measure beside other libraries",
        description="jax_fabric beside other libraries, in one run.",
    )
    benchmarks = parser.add_subparsers(metavar="benchmark", required=True)
    _add_moe(benchmarks)
    _add_transfer(benchmarks)


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
    add_numbers(parser, _NUMBERS, defaults, _QUICK)
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
    _add_common(parser)
    parser.set_defaults(run=lambda arguments: _run_moe(parser, arguments))


def _add_transfer(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "transfer",
        help="single and paged writes, latency",
        description=_TRANSFER_DESCRIPTION,
        epilog=_TRANSFER_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_numbers(parser, _TRANSFER_NUMBERS, TransferBenchConfig(), _QUICK_TRANSFER)
    parser.add_argument(
        "--peer",
        dest="peers",
        action="append",
        choices=TRANSFER_PEERS,
        help="measure beside this one; may be given again (default: all that can run)",
    )
    _add_common(parser)
    parser.set_defaults(run=lambda arguments: _run_transfer(parser, arguments))


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="smaller, and fewer repetitions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows to FILE")
    parser.add_argument(
        "--environments",
        type=Path,
        metavar="FOLDER",
        help="where the environments of peers lie (default: benchmarks/peers of the source)",
    )


def _run_transfer(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    check_folders(parser, arguments.json)
    given = given_fields(arguments, TransferBenchConfig)

    from jax_fabric.bench import nixl, transfer

    if "peers" not in given and not nixl.available(arguments.environments):
        print("without NIXL: benchmarks/peers/setup nixl makes its environment")
        given["peers"] = ()
    peers = tuple(given.get("peers", TRANSFER_PEERS))
    quick = _QUICK_TRANSFER if arguments.quick else {}
    try:
        config = TransferBenchConfig(**(quick | given | {"peers": peers}))
    except ValueError as error:
        parser.error(str(error))
    return transfer.main(config, arguments.json, arguments.environments)


def _run_moe(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    check_folders(parser, arguments.json)
    given = given_fields(arguments, MoeBenchConfig)

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
