"""A loop of steps that goes on without the ranks it loses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

import jax

from jax_fabric.arguments import instance, integer
from jax_fabric.errors import InvalidArgument
from jax_fabric.fabric import LOSS_BY_SILENCE_S, Fabric
from jax_fabric.membership import Membership

State = TypeVar("State")

# Survivors hear of a loss one after the other: who asks soon after an error may be too early.
_LOSS_IS_KNOWN_AFTER_S = 2.0
# Of exchanges, where a rank may be lost and nobody knows it yet.
_WORDS_OF_A_LOSS = (" cannot send", " waited ", " is lost", " has given up")


def run_steps(
    fabric: Fabric,
    step: Callable[[int, State, Membership], State],
    state: State,
    *,
    end: int,
    first: int = 0,
    on_peer_loss: Literal["raise", "mask"] = "raise",
) -> State:
    """Runs ``state = step(i, state, membership)`` for i from ``first`` to ``end``; collective.

    With ``on_peer_loss="mask"`` the loss of processes ends no loop: the step in which a rank is
    lost fails in every process that is left, these agree on who they are (``Fabric.recover``), and
    all go on with the earliest step that one of them has not finished, from the state of then.
    Experts of lost ranks count as not routed, like id -1; ``membership.present`` says which devices
    are there. Programs stay compiled. A step needs an exchange among all ranks, so that no process
    is more than one step ahead; and it must not donate its state, for it may have to be done again.

    Args:
      fabric: the steps' fabric. For "mask" with ``jax_enable_recoverability`` set before
        ``jax.distributed.initialize``, as for ``Fabric.recover``; process 0 cannot be lost.
      step: called with the step's number, the state and who takes part; returns the next state, a
        pytree. What it does besides, writing a checkpoint say, may be done twice for one number.
      state: a pytree.
      end: the number behind the last one.
      first: the first step's number.
      on_peer_loss: "raise" or "mask".

    Returns:
      The state after the last step.

    Raises:
      InvalidArgument: an argument is wrong.
      Exception: what ``step`` raises, but for what follows from a lost process with "mask".
      RuntimeError: ranks on GPUs had an error: it is raised after the step, not by it. Or, with
        "mask", processes are more than a step apart.
      TimeoutError: with "mask", another process was lost while the others agreed.
    """
    instance("fabric", fabric, Fabric)
    integer("first", first, most=2**31 - 1)
    integer("end", end, least=first, most=2**31 - 1)
    if on_peer_loss not in ("raise", "mask"):
        raise InvalidArgument(f"on_peer_loss={on_peer_loss!r}: must be 'raise' or 'mask'")
    number, before = first, state
    while number < end:
        try:
            after = jax.block_until_ready(step(number, state, fabric.membership))
            fabric.check()
        except Exception as error:
            perhaps = any(words in str(error) for words in _WORDS_OF_A_LOSS)
            patience_s = LOSS_BY_SILENCE_S if perhaps else _LOSS_IS_KNOWN_AFTER_S
            if on_peer_loss == "raise" or not fabric.wait_for_loss(patience_s):
                raise
            agreed = fabric.recover(step=number).step
            if agreed < max(first, number - 1):
                raise RuntimeError(
                    f"another process is at step {agreed} and this one at {number}, first={first}: "
                    "steps need an exchange among all ranks, and first has to be the same for all"
                ) from None
            if agreed < number:
                number, state = agreed, before
            continue
        number, before, state = number + 1, state, after
    return state
