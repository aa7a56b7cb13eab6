"""``jax-fabric simulate``: how long exchanges would take on NICs that are not here. A model."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
from pathlib import Path

from jax_fabric.cli.arguments import add_numbers, check_folders, given_fields
from jax_fabric.simulate.config import MoeSimulationConfig
from jax_fabric.simulate.constants import NICS, PAPER_PREFILL_TOKENS

_MOE_DESCRIPTION = """\
Predicts dispatch and combine on ConnectX-7 and EFA. This is a model: the channels and engines of
this library run on a simulated network with a virtual clock, and so does the two-phase protocol of
the paper "RDMA Point-to-Point Communication for LLM Systems". A NIC is its latency, its bandwidth
and its time for each request; the first two are fitted on the paper's EP16 and EP64. Kernels take
the time that the paper states for its own.

  the paper                       what it measured
  model of its protocol           counts and the first P rows for each rank, then the others
  model of jax_fabric's messages  what this library sends, posted by a program: an exchange for each
                                  round, and no announcements
  model of jax_fabric             its real channels, which announce each call first; up to 256 ranks

With more than 256 ranks, 64 stand for all; the last column says how many were run.
"""

_MOE_EPILOG = """\
examples:
  jax-fabric simulate moe                              both NICs, 16 to 1024 ranks
  jax-fabric simulate moe --nic efa --ranks 64         one of them
  jax-fabric simulate moe --prefill --slot-tokens 256  4096 tokens, ours in rounds of 256 rows
  jax-fabric simulate moe --ranks 64 --sweep 64        what private tokens do in two phases
  jax-fabric simulate moe --plot moe.png --json moe.json
"""

_FIT_DESCRIPTION = """\
Fits latency and bandwidth of each NIC on the paper's EP16 and EP64 again, and shows how far the
model is from its EP32, which the fit does not see. jax_fabric/simulate/constants.py has the
results.
"""

# flag, field of MoeSimulationConfig, help.
_NUMBERS = (
    ("--tokens", "tokens", "tokens of each rank"),
    ("--hidden", "hidden", "elements of a token's row"),
    ("--top-k", "top_k", "experts of each token"),
    ("--experts", "experts", "experts over all ranks, at least one on each"),
    ("--node-ranks", "node_ranks", "ranks of a node"),
    ("--private-tokens", "private_tokens", "P of the two-phase protocol; None: the paper's"),
    ("--slot-tokens", "slot_tokens", "rows from rank to rank in a round of ours; None: all"),
    ("--calls", "calls", "dispatches and combines in each run"),
    ("--seed", "seed", "of the routings"),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``simulate`` and what is under it."""
    parser = subparsers.add_parser(
        "simulate",
        help="predict times on NICs that are not here (a model)",
        description="How long exchanges would take on NICs that are not here. A model.",
    )
    simulations = parser.add_subparsers(metavar="simulation", required=True)
    _add_moe(simulations)
    _add_fit(simulations)


def _add_moe(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "moe",
        help="dispatch and combine",
        description=_MOE_DESCRIPTION,
        epilog=_MOE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = MoeSimulationConfig()
    parser.add_argument(
        "--nic",
        dest="nics",
        action="append",
        choices=tuple(NICS),
        help="may be given again (default: all)",
    )
    ranks = " ".join(map(str, defaults.ranks))
    parser.add_argument(
        "--ranks", type=int, nargs="+", metavar="N", help=f"a run for each (default: {ranks})"
    )
    add_numbers(parser, _NUMBERS, defaults)
    parser.add_argument(
        "--prefill",
        action="store_true",
        help=f"{PAPER_PREFILL_TOKENS} tokens on each rank, 16 to 64 ranks, one call",
    )
    parser.add_argument(
        "--sweep", type=int, metavar="N", help="also private tokens from 1 to 128, with N ranks"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to FILE")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw p50 over ranks into FILE, e.g. moe.png"
    )
    parser.set_defaults(run=lambda arguments: _run_moe(parser, arguments))


def _add_fit(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "fit",
        help="fit the constants again",
        description=_FIT_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--nic", dest="nics", action="append", choices=tuple(NICS), help="default: all"
    )
    parser.set_defaults(run=_run_fit)


def _run_moe(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    check_folders(parser, arguments.plot, arguments.json, arguments.markdown)
    if arguments.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install 'jax-fabric[plots]'")
    given = given_fields(arguments, MoeSimulationConfig)
    given |= {k: tuple(given[k]) for k in ("nics", "ranks") if k in given}
    prefill = dict(tokens=PAPER_PREFILL_TOKENS, ranks=(16, 32, 64), calls=1)
    try:
        config = MoeSimulationConfig(**((prefill if arguments.prefill else {}) | given))
        if arguments.sweep is not None:
            dataclasses.replace(config, ranks=(arguments.sweep,))
    except ValueError as error:
        parser.error(str(error))

    from jax_fabric.simulate import moe

    output = moe.Output(json=arguments.json, markdown=arguments.markdown, plot=arguments.plot)
    return moe.main(config, output, sweep_ranks=arguments.sweep)


def _run_fit(arguments: argparse.Namespace) -> int:
    from jax_fabric.simulate import fit
    from jax_fabric.simulate.constants import CHECKED_RANKS, FITTED_RANKS
    from jax_fabric.simulate.report import Report

    report = Report()
    ranks = (*FITTED_RANKS, *CHECKED_RANKS)
    for name in arguments.nics or NICS:
        with report.progress(12, f"fit {name}") as advance:
            fitted = fit.fit(NICS[name], on_step=advance)
        report.fitted(fitted, list(fit.errors(fitted, ranks)), ranks)
    return 0
