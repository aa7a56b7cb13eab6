"""``jax-fabric demo``: complete programs that check themselves."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from jax_fabric.cli.arguments import add_numbers, check_folders, given_fields
from jax_fabric.demo.config import DemoConfig

_MOE_DESCRIPTION = """\
Trains a small mixture-of-experts transformer on text over several ranks of this machine. In each
layer, jax_fabric sends every token to the ranks of its experts and brings their sum back, inside of
one jitted program, forward and backward.

Then it says how right that was: rows are compared bit by bit, and logits, loss and all gradients
with those of the same model on one device without any exchange. The exit code is 0 only if every
check passes.
"""

_MOE_EPILOG = """\
examples:
  jax-fabric demo moe                       8 ranks in this process
  jax-fabric demo moe --processes 4         the same 8 ranks in 4 processes, through jax.distributed
  jax-fabric demo moe --quick               smaller and shorter
  jax-fabric demo moe --quick --processes 2 --domain efa --provider tcp      over libfabric
  jax-fabric demo moe --quick --processes 2 --domain efa --provider fakesrd  over a fake EFA NIC
  jax-fabric demo moe --quick --processes 2 --domain connectx                over libibverbs
  jax-fabric demo moe --dtype bfloat16 --experts 32 --top-k 4 --plot loss.png
"""

# What --quick starts from; other flags still count.
_QUICK = dict(tokens=32, hidden=32, steps=10, repeats=10)

# flag, field of DemoConfig, help.
_NUMBERS = (
    ("--ranks", "ranks", "devices over which experts and batch are spread"),
    ("--processes", "processes", "processes that share the ranks; must divide them"),
    ("--tokens", "tokens", "characters in each rank's part of the batch"),
    ("--hidden", "hidden", "elements of a token's row"),
    ("--experts", "experts", "experts of each layer, over all ranks"),
    ("--top-k", "top_k", "experts of each token"),
    ("--private-tokens", "private_tokens", "rows from rank to rank at once; None: tokens"),
    ("--layers", "layers", "transformer blocks"),
    ("--steps", "steps", "training steps"),
    ("--seed", "seed", "of parameters and batches"),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``demo`` and the demonstrations under it."""
    parser = subparsers.add_parser(
        "demo",
        help="run a complete program that checks itself",
        description="Complete programs that check themselves.",
    )
    demonstrations = parser.add_subparsers(metavar="demonstration", required=True)
    _add_moe(demonstrations)


def _add_moe(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "moe",
        help="train a mixture-of-experts transformer over several ranks",
        description=_MOE_DESCRIPTION,
        epilog=_MOE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = DemoConfig()
    add_numbers(parser, _NUMBERS, defaults, _QUICK)
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help=f"of activations (default: {defaults.dtype})",
    )
    parser.add_argument(
        "--domain",
        choices=("local", "efa", "connectx"),
        help="how rows travel: local (shared memory), efa (libfabric) or connectx (libibverbs); "
        "default: as JAX_FABRIC_DOMAIN says, else local",
    )
    parser.add_argument(
        "--provider",
        metavar="NAME",
        help="of libfabric, with --domain efa: efa, or where there is no such NIC tcp, "
        "shm (one rank a process) or fakesrd (EFA's provider on a fake NIC; needs a checkout)",
    )
    parser.add_argument("--quick", action="store_true", help="a small model and few steps")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the loss into FILE, e.g. loss.png"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.set_defaults(run=lambda arguments: _run_moe(parser, arguments))


def _run_moe(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    given = given_fields(arguments, DemoConfig)
    try:
        config = DemoConfig(**((_QUICK if arguments.quick else {}) | given))
    except ValueError as error:
        parser.error(str(error))
    check_folders(parser, arguments.plot, arguments.json)
    if arguments.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install 'jax-fabric[plots]'")

    from jax_fabric.demo import moe
    from jax_fabric.testing import fake_srd

    if config.provider == fake_srd.NAME:
        try:
            fake_srd.find()
        except FileNotFoundError as error:
            parser.error(str(error))
    return moe.main(config, moe.Output(json=arguments.json, plot=arguments.plot))
