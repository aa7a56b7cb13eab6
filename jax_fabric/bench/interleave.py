"""Times several calls in turn: A B C A B C, so that other load on the machine hits all of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


@dataclasses.dataclass(frozen=True)
class Contender:
    """A call to time.

    Attributes:
      name: for the results.
      call: takes the number of the call, from 0 to twice the repetitions, and returns what to wait
        for. Operands should be there before and be others each time.
    """

    name: str
    call: Callable[[int], Any]


def interleave(
    contenders: Sequence[Contender], repetitions: int, advance: Callable[[], None] = lambda: None
) -> dict[str, np.ndarray]:
    """Times every contender `repetitions` times.

    Before each timed call the same contender runs once untimed: the caches and sleeping threads it
    meets are its own, and processes that a call ties together start the timed one together.

    Args:
      contenders: of every process the same ones.
      repetitions: rounds.
      advance: called after each round.

    Returns:
      Seconds of every round for each name: of the process that took longest.
    """
    seconds = np.zeros((len(contenders), repetitions))
    for repetition in range(repetitions):
        for index, contender in enumerate(contenders):
            jax.block_until_ready(contender.call(2 * repetition))
            begin = time.perf_counter()
            result = jax.block_until_ready(contender.call(2 * repetition + 1))
            seconds[index, repetition] = time.perf_counter() - begin
            del result  # untimed
        advance()
    if jax.process_count() > 1:
        # As float32, which is what JAX carries unless told otherwise.
        gathered = multihost_utils.process_allgather(seconds.astype(np.float32))
        seconds = np.asarray(gathered, np.float64).max(axis=0)
    return {each.name: times for each, times in zip(contenders, seconds, strict=True)}
