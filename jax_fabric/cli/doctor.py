"""``jax-fabric doctor``: what of this machine works, what is missing, and what mends it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from jax_fabric.cli.arguments import check_folders

_DESCRIPTION = """\
Looks at this machine's GPUs, NICs, limits and libraries, and says of each whether transfers can
use it, which GPU each NIC is for, and for everything that is wrong the command that mends it. It
changes nothing.

  ok        works
  note      for reading; nothing is wrong
  warning   works, but slower or not everywhere
  PROBLEM   keeps something from working; the exit code is 1 if there is any

What is not there is a note, unless you expect it (--expect).
"""

_EPILOG = """\
examples:
  jax-fabric doctor                          look
  jax-fabric doctor --selftest               look, then write over everything that is here
  jax-fabric doctor --expect gpu connectx    a machine without them is broken
  jax-fabric doctor --json                   for programs; --json FILE writes it to a file
  jax-fabric doctor --sysfs COPY             read COPY/sys and COPY/proc of another machine

what the lines mean, and the rules by which NICs are assigned: docs/hardware.md, docs/topology.md
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``doctor``."""
    parser = subparsers.add_parser(
        "doctor",
        help="say what of this machine works and how to mend the rest",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--expect",
        nargs="+",
        choices=("gpu", "efa", "connectx"),
        default=[],
        help="what must be there: its absence is a problem",
    )
    parser.add_argument(
        "--selftest",
        action="store_true",
        help="write between two processes over the machine's memory, libfabric's TCP and every "
        "NIC, check every byte, and say what could not be run",
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="print JSON in place of the table, or write it to FILE beside the table",
    )
    parser.add_argument(
        "--sysfs",
        type=Path,
        default=Path("/"),
        metavar="ROOT",
        help="the folder with the machine's sys and proc (default: /); below another one than / "
        "this machine's own libraries are not looked at",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="of each transfer of the self-test (default: %(default)g)",
    )
    parser.set_defaults(run=lambda arguments: _run(parser, arguments))


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if not (arguments.sysfs / "sys").is_dir():
        parser.error(f"--sysfs {arguments.sysfs}: there is no folder {arguments.sysfs / 'sys'}")
    if arguments.selftest and arguments.sysfs != Path("/"):
        parser.error("--selftest runs on this machine: leave --sysfs away")
    if arguments.timeout <= 0:
        parser.error(f"--timeout {arguments.timeout:g}: must be above 0")
    to_file = arguments.json not in (None, "-")
    check_folders(parser, Path(arguments.json) if to_file else None)

    from rich.console import Console

    from jax_fabric.observe.doctor import examine, report
    from jax_fabric.observe.doctor.selftest import selftest
    from jax_fabric.topology import Machine

    findings = examine(
        arguments.sysfs,
        expect=arguments.expect,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
    if arguments.selftest:
        findings += selftest(Machine.read(), arguments.timeout)
    if arguments.json == "-":
        print(report.to_json(findings))
    else:
        report.print_table(findings, Console(highlight=False))
    if to_file:
        Path(arguments.json).write_text(report.to_json(findings) + "\n")
    return 1 if any(finding.state == "problem" for finding in findings) else 0
