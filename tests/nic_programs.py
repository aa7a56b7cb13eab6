"""What each process of efa_test and connectx_test runs."""

from __future__ import annotations

import traceback

import processes_programs as programs
from processes_testing import Expected

from jax_fabric.testing import fake_srd

CHECKS = ("forward", "gradients", "independent_calls_on_one_channel")


def run_checks(want: Expected) -> dict[str, str]:
    """What went wrong, for each check; empty where nothing did."""
    outcome = {}
    for name in CHECKS:
        try:
            check = programs.CHECKS[name]
            outcome[name] = (check(want) if name in ("forward", "gradients") else check()) or ""
        except Exception:
            outcome[name] = traceback.format_exc()
    return outcome


def run_checks_over_fake_srd(want: Expected) -> dict[str, str]:
    fake_srd.load()
    return run_checks(want)
