"""Which processes go on together after some were lost, and with which that come back."""

from __future__ import annotations

import dataclasses
import functools
import json
import secrets
import time
from collections.abc import Callable, Collection

from jax_fabric.bootstrap.exchange import Bootstrap

_LOOK_S = 0.05


@dataclasses.dataclass(frozen=True)
class Agreement:
    """What the surviving processes have agreed on.

    Attributes:
      processes: indices of those that go on, rising.
      step: the smallest one that any survivor gave.
      contexts: how many contexts and watchers the survivors have made: those that come back make
        them, too.
    """

    processes: tuple[int, ...]
    step: int
    contexts: int = 0


def agree(
    bootstrap: Bootstrap,
    name: str,
    process: int,
    candidates: Collection[int],
    step: int,
    timeout_s: float,
    *,
    rejoin: Collection[int] = (),
    contexts: int = 0,
    lost: Callable[[], Collection[int]] = tuple,
) -> Agreement:
    """Agrees with the other survivors on who they are, and on who of the lost ones is back.

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
      timeout_s: how long to wait for candidates, which may be dead, and for those that come back.
      rejoin: processes that may come back, none of them a candidate; see ``rejoin``.
      contexts: how many this process has made: as many as the other survivors.
      lost: those whose death this process hears of meanwhile. A NIC may fail to write to a peer
        before anybody knows whether that has died.

    Raises:
      RuntimeError: the others have gone on without this process.
      TimeoutError: nothing was agreed on in time.
    """
    bootstrap.publish(f"{name}/here/{process}", str(step).encode())
    deadline = time.monotonic() + timeout_s
    keys = {candidate: f"{name}/here/{candidate}" for candidate in candidates}
    keys |= {candidate: f"{name}/back/{candidate}" for candidate in rejoin}
    heard = {process: str(step)}
    decision = None
    while (
        decision is None
        and (awaited := keys.keys() - heard - set(lost()))
        and time.monotonic() < deadline
    ):
        for candidate in sorted(awaited):
            found = _look(bootstrap, keys[candidate])
            if found is not None:
                heard[candidate] = found.decode()
        decision = _look(bootstrap, f"{name}/decision")
    if decision is None:
        lives = {each: heard.pop(each) for each in rejoin if each in heard}
        proposal = {
            "processes": sorted([*heard, *lives]),
            "step": min(map(int, heard.values())),
            "lives": lives,
            "contexts": contexts,
        }
        decision = bootstrap.publish_first(f"{name}/decision", json.dumps(proposal).encode())
    agreement, _ = _parse(decision)
    if process not in agreement.processes:
        raise RuntimeError(
            f"process {process} was taken for dead: processes {list(agreement.processes)} have "
            f"gone on without it; start it anew, with rejoin=True for its fabric"
        )
    return agreement


def rejoin(
    bootstrap: Bootstrap, name: str, process: int, timeout_s: float
) -> tuple[int, Agreement]:
    """Takes the place of a lost process in the others' next agreement that wants it back.

    Args:
      bootstrap: how they reach each other.
      name: of all agreements; that of epoch n is ``name/n``.
      process: index of this one.
      timeout_s: how long to wait for the others.

    Returns:
      The epoch, and what was agreed on.

    Raises:
      TimeoutError: no agreement has taken this process back in time.
    """
    deadline = time.monotonic() + timeout_s
    epoch = 1
    while True:
        decision = _look(bootstrap, f"{name}/{epoch}/decision")
        if decision is None:
            # Where a former life has said so before, the others take that one back and find it
            # missing: the epoch after it is ours.
            bootstrap.publish_first(f"{name}/{epoch}/back/{process}", _own_life().encode())
            try:
                decision = bootstrap.fetch(
                    f"{name}/{epoch}/decision", max(_LOOK_S, deadline - time.monotonic())
                )
            except TimeoutError as error:
                raise TimeoutError(
                    f"process {process} is back, and the others have not taken it in within "
                    f"{timeout_s} s: they call recover(rejoin=[{process}])"
                ) from error
        agreement, lives = _parse(decision)
        if lives.get(process) == _own_life():
            return epoch, agreement
        epoch += 1


@functools.cache
def _own_life() -> str:
    """Of this process: one that is started anew has another one."""
    return secrets.token_hex(8)


def _parse(decision: bytes) -> tuple[Agreement, dict[int, str]]:
    """What was agreed on, and the life that is meant of each process that was taken back."""
    agreed = json.loads(decision)
    lives = {int(process): life for process, life in agreed["lives"].items()}
    return Agreement(tuple(agreed["processes"]), agreed["step"], agreed["contexts"]), lives


def _look(bootstrap: Bootstrap, key: str) -> bytes | None:
    try:
        return bootstrap.fetch(key, _LOOK_S)
    except TimeoutError:
        return None
