"""How long the processor takes to copy as many bytes: the floor under every exchange."""

from __future__ import annotations

import concurrent.futures
import os

import numpy as np

_IN_CACHE_BYTES = 128 * 1024
_STEP_BYTES = 64


class Memcpy:
    """Copies bytes back and forth, with as many threads as this process has cores for itself."""

    def __init__(self, each_way_bytes: int, processes: int):
        """Makes the buffers.

        Args:
          each_way_bytes: what this process copies in each direction.
          processes: that share the machine and copy at the same time.
        """
        cores = len(os.sched_getaffinity(0))
        self.threads = max(1, cores // processes)
        share = max(1, each_way_bytes // self.threads)
        self._pool = concurrent.futures.ThreadPoolExecutor(self.threads)
        self._large = [_Pair(share) for _ in range(self.threads)]
        small = min(share, _IN_CACHE_BYTES)
        self._small = [_Pair(small, round(share / small)) for _ in range(self.threads)]

    def beyond_cache(self, _: int) -> None:
        """Copies all bytes once each way."""
        list(self._pool.map(lambda pair: pair.back_and_forth(), self._large))

    def in_cache(self, _: int) -> None:
        """Copies the same few bytes until it has been as many."""
        list(self._pool.map(lambda pair: pair.back_and_forth(), self._small))

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()


class _Pair:
    def __init__(self, size: int, rounds: int = 1):
        # One call of NumPy copies all rounds: with a call for each, threads would wait for each
        # other in the interpreter.
        self._a, self._b = (_windows(size, rounds) for _ in range(2))

    def back_and_forth(self) -> None:
        np.copyto(self._b, self._a)
        np.copyto(self._a, self._b)


def _windows(size: int, rounds: int) -> np.ndarray:
    """[rounds, size]: each row begins one step behind the one before, so all are in the cache.

    Were it the very same memory, NumPy would copy byte by byte.
    """
    memory = np.ones(size + (rounds - 1) * _STEP_BYTES, np.uint8)
    return np.lib.stride_tricks.as_strided(memory, (rounds, size), (_STEP_BYTES, 1))
