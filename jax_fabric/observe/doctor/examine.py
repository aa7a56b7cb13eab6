"""All checks of a machine."""

from __future__ import annotations

import os
from collections.abc import Collection

from jax_fabric import _core
from jax_fabric.errors import InvalidArgument
from jax_fabric.observe.doctor.finding import Finding
from jax_fabric.observe.doctor.gpu_checks import gpu_findings
from jax_fabric.observe.doctor.library_checks import library_findings
from jax_fabric.observe.doctor.machine_checks import machine_findings
from jax_fabric.observe.doctor.nic_checks import nic_findings
from jax_fabric.topology import Machine, Sysfs, assign_to_gpus, find_data_nics, visible_gpus

#: What a user can say must be there.
EXPECTABLE = ("gpu", "efa", "connectx")


def examine(
    root: str | os.PathLike[str] = "/",
    *,
    expect: Collection[str] = (),
    visible: str | None = None,
) -> list[Finding]:
    """Looks at everything; starts no transfer and changes nothing.

    Args:
      root: the folder that has the machine's ``sys`` and ``proc``. Under another one than "/" only
        those are looked at, not this machine's libraries and devices.
      expect: of EXPECTABLE: what is a problem when it is missing.
      visible: value of CUDA_VISIBLE_DEVICES; None: not set.
    """
    sysfs = Sysfs(root)
    machine = Machine.read(root)
    present = {nic.family for nic in machine.nics} & {"efa", "connectx"}
    needed = present | (set(expect) - {"gpu"})
    assignments = {
        family: assign_to_gpus(machine, find_data_nics(machine, family)) for family in present
    }
    findings = list(machine_findings(sysfs, machine, bool(needed)))
    findings += gpu_findings(sysfs, machine, bool(needed))
    findings += _visible(machine, visible)
    findings += nic_findings(sysfs, machine, assignments)
    findings += _expected(machine, present, expect)
    if str(sysfs.root) == "/":
        findings += library_findings(needed)
        findings += environment_findings(machine)
    return findings


def environment_findings(machine: Machine) -> list[Finding]:
    """Whether the JAX_FABRIC_ variables of this process make sense here."""
    subject, check = "environment", "JAX_FABRIC_*"
    try:
        kind, provider, library, groups, exclude = _core.transport(None, None)
    except InvalidArgument as error:
        fix = "unset it, or give what the message says (docs/configuration.md)"
        return [Finding(subject, check, "problem", str(error), fix)]
    value = f"domain {kind}" + (f", provider {provider}" if provider else "")
    named = {name for group in groups for name in group} | set(exclude)
    if named:
        value += f", JAX_FABRIC_NICS {'^' if exclude else ''}{', '.join(sorted(named))}"
    in_sysfs = provider.startswith("efa") or (kind == "connectx" and not library)
    unknown = named - {nic.name for nic in machine.nics}
    if in_sysfs and unknown:
        listed = ", ".join(nic.name for nic in machine.nics) or "no NIC"
        fix = f"ls /sys/class/infiniband: there is {listed}"
        return [Finding(subject, check, "problem", f"{value}: not here", fix)]
    return [Finding(subject, check, "ok", value)]


def _visible(machine: Machine, visible: str | None) -> list[Finding]:
    if visible is None or not machine.gpus:
        return []
    subject, check = "GPUs", "visible"
    try:
        seen = visible_gpus(machine.gpus, visible)
    except InvalidArgument as error:
        return [Finding(subject, check, "problem", str(error), "set CUDA_VISIBLE_DEVICES anew")]
    value = f"CUDA_VISIBLE_DEVICES={visible}: " + (
        ", ".join(f"GPU {gpu.index}" for gpu in seen) or "none"
    )
    if len(seen) == len([part for part in visible.split(",") if part.strip()]):
        return [Finding(subject, check, "note", value)]
    fix = "name GPUs by index or UUID (nvidia-smi -L); the first unknown one ends the list"
    return [Finding(subject, check, "warning", value, fix)]


def _expected(machine: Machine, present: set[str], expect: Collection[str]) -> list[Finding]:
    findings = []
    if "gpu" in expect and not machine.gpus:
        fix = "lspci | grep -i nvidia; docker run --gpus all; a machine with a GPU"
        findings.append(Finding("GPUs", "expected", "problem", "there is none", fix))
    for family, fix in (
        ("efa", "an instance type with EFA, its interfaces attached as EFA; sudo modprobe efa"),
        (
            "connectx",
            "sudo apt-get install rdma-core; sudo modprobe mlx5_ib (or the NIC's driver); "
            "docker run --device=/dev/infiniband",
        ),
    ):
        if family in expect and family not in present:
            value = f"no NIC of {family} in /sys/class/infiniband"
            findings.append(Finding("NICs", f"expected {family}", "problem", value, fix))
    return findings
