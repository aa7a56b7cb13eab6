"""Two groups of one engine, for the tests of jax_fabric.engine."""

import contextlib
import queue
import sys

import numpy as np
from absl.testing import parameterized

from jax_fabric import engine, memory

REMOTE_WRITE = memory.Access.REMOTE_WRITE


class Pair:
    """Two groups of one engine that know each other."""

    def __init__(self, **options):
        self.engine = engine.TransferEngine(timeout_s=20, **options)
        self.regions = []
        self.a, self.b = self.engine.add_group("a"), self.engine.add_group("b")
        self.to_b = self.a.add_peer(self.b.address())
        self.to_a = self.b.add_peer(self.a.address())
        self.a.wait_peers([self.to_b])

    def source(self, array):
        return self.a.register(array)

    def target(self, nbytes):
        region = self.b.register(np.zeros(nbytes, np.uint8), REMOTE_WRITE)
        self.regions.append(region)  # a dropped one is deregistered
        return region

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.engine.close()


@contextlib.contextmanager
def unraisable():
    """What callbacks raised meanwhile."""
    found = queue.Queue()
    before, sys.unraisablehook = sys.unraisablehook, lambda args: found.put(args.exc_value)
    try:
        yield found
    finally:
        sys.unraisablehook = before


class PairTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.pair = self.enterContext(Pair())
