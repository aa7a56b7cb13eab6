"""Which processes go on together after some were lost."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Collection

from jax_fabric.bootstrap.exchange import Bootstrap

_LOOK_S = 0.05


@dataclasses.dataclass(frozen=True)
class Agreement:
    """What the surviving processes have agreed on.

    Attributes:
      processes: indices of those that go on, rising.
      step: the smallest one that any of them gave.
    """

    processes: tuple[int, ...]
    step: int


def agree(
    bootstrap: Bootstrap,
    name: str,
    process: int,
    candidates: Collection[int],
    step: int,
    timeout_s: float,
) -> Agreement:
    """Agrees with the other survivors on who they are.

    Everybody says that it is here and proposes all that it has heard of; the proposal that is
    published first is everybody's. So nobody needs to lead, and whoever dies meanwhile is either in
    the agreement, and found missing at the next exchange, or not. A compare-and-set register gives
    consensus for any number of processes (Herlihy, Wait-Free Synchronization, 1991).

    Args:
      bootstrap: how they reach each other.
      name: of this agreement, another one each time and equal for all.
      process: index of this one.
      candidates: those that this one has not seen die, itself among them.
      step: what this process wants the smallest of.
      timeout_s: how long to wait for candidates, which may be dead.

    Raises:
      RuntimeError: the others have gone on without this process.
      TimeoutError: nothing was agreed on in time.
    """
    bootstrap.publish(f"{name}/here/{process}", str(step).encode())
    deadline = time.monotonic() + timeout_s
    steps = {process: step}
    decision = None
    while decision is None and set(candidates) - set(steps) and time.monotonic() < deadline:
        for candidate in sorted(set(candidates) - set(steps)):
            found = _look(bootstrap, f"{name}/here/{candidate}")
            if found is not None:
                steps[candidate] = int(found)
        decision = _look(bootstrap, f"{name}/decision")
    if decision is None:
        proposal = {"processes": sorted(steps), "step": min(steps.values())}
        decision = bootstrap.publish_first(f"{name}/decision", json.dumps(proposal).encode())
    agreed = json.loads(decision)
    if process not in agreed["processes"]:
        raise RuntimeError(
            f"process {process} was taken for dead: processes {agreed['processes']} have gone on "
            f"without it; start it anew"
        )
    return Agreement(tuple(agreed["processes"]), agreed["step"])


def _look(bootstrap: Bootstrap, key: str) -> bytes | None:
    try:
        return bootstrap.fetch(key, _LOOK_S)
    except TimeoutError:
        return None
