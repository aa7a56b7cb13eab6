"""What the commands share: flags that set fields of a configuration."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Number = tuple[str, str, str]
"""Flag, field of the configuration, help."""


def add_numbers(
    parser: argparse.ArgumentParser,
    numbers: Iterable[Number],
    defaults: Any,
    quick: Mapping[str, Any] | None = None,
) -> None:
    """Adds a flag for each field that is an integer.

    Args:
      parser: gets the flags; one that is not given leaves None.
      numbers: flags, the fields that they set, and their help.
      defaults: a configuration, whose values the help shows.
      quick: what ``--quick`` puts in the place of defaults.
    """
    for flag, field, text in numbers:
        instead = f", {quick[field]} with --quick" if quick and field in quick else ""
        help_text = f"{text} (default: {getattr(defaults, field)}{instead})"
        parser.add_argument(flag, dest=field, type=int, metavar="N", help=help_text)


def given_fields(arguments: argparse.Namespace, config: type) -> dict[str, Any]:
    """Returns the fields of the configuration ``config`` that the command line sets."""
    fields = {field.name for field in dataclasses.fields(config)}
    return {k: v for k, v in vars(arguments).items() if k in fields and v is not None}


def check_folders(parser: argparse.ArgumentParser, *files: Path | None) -> None:
    """Ends the command if a file could not be written: now rather than after the run."""
    for file in files:
        if file and not file.absolute().parent.is_dir():
            parser.error(f"{file}: there is no folder {file.parent}")
