"""Entry point of ``jax-fabric``.

A command is a module of this package with ``add_parser(subparsers)``, which sets ``run`` as a
default: a function of the parsed arguments that returns the exit code. A command that needs devices
prepares the environment before JAX starts, so no module here asks JAX for anything when it is
imported.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import jax_fabric
from jax_fabric.cli import bench, demo, doctor, simulate

_COMMANDS = (demo, bench, simulate, doctor)
_INTERRUPTED = 130  # as shells say it for Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code (2 for arguments that make no sense)."""
    parser = argparse.ArgumentParser(prog="jax-fabric", description=jax_fabric.__doc__)
    parser.add_argument("--version", action="version", version=f"%(prog)s {jax_fabric.__version__}")
    subparsers = parser.add_subparsers(metavar="command", required=True)
    for command in _COMMANDS:
        command.add_parser(subparsers)
    parsed = parser.parse_args(arguments)
    try:
        return parsed.run(parsed)
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
