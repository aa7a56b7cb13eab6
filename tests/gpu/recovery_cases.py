"""A process that is lost, the others that go on without it, and its return.

Programs are compiled and recorded once, before anything happens, and run in every membership epoch.
"""

from __future__ import annotations

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
from checker import Checker, factor, factors, meet, routing
from failure_cases import expect_failure, is_last, leave_in_order


class _Programs:
    """Of one batch of tokens, which stays the same: so does what XLA has recorded."""

    def __init__(self, checker: Checker):
        self._checker = checker
        self._x, self._experts, self._weights = routing(checker.sizes, 1)
        self._g = routing(checker.sizes, 1001)[0]
        in_rounds = checker.with_context(private_tokens=5)

        def gradients(x, experts, weights, g):
            def loss(x, weights):
                return jnp.sum(checker.layer(x, experts, weights) * g)

            return jax.grad(loss, (0, 1))(x, weights)

        self.layer = checker.on_ranks(checker.layer)
        self._layers = {
            "whole": self.layer,
            "split": checker.on_ranks(checker.split_layer),
            "in rounds": checker.on_ranks(in_rounds.layer),
            "split, in rounds": checker.on_ranks(in_rounds.split_layer),
        }
        self._gradients = checker.on_ranks(gradients, 2)
        self.operands = [checker.put(each) for each in (self._x, self._experts, self._weights)]
        self._cotangent = checker.put(self._g)

    def run(self, when: str, steps: int) -> None:
        """All of them, against the oracle without the experts of ranks that are lost."""
        checker = self._checker
        present = checker.fabric.membership.present
        ranks = np.maximum(self._experts, 0) // checker.moe.config.experts_per_rank
        experts = np.where(present[ranks], self._experts, -1)
        total = factors(experts, self._weights)
        for number in range(steps):
            for name, program in self._layers.items():
                what = f"{when}: {name}, step {number}"
                checker.expect(program(*self.operands), self._x * total, what)
            dx, dw = self._gradients(*self.operands, self._cotangent)
            checker.expect(dx, self._g * total, f"{when}: dx of step {number}")
            wanted = factor(experts) * (self._x * self._g).sum(1, keepdims=True)
            checker.expect(dw, wanted, f"{when}: dw of step {number}", 1e-4)
        checker.fabric.check()


def recovered(checker: Checker, steps: int) -> None:
    """The last process is killed while its stream is idle; later it is started anew."""
    programs = _Programs(checker)
    fabric, last = checker.fabric, jax.process_count() - 1
    if not checker.is_back:
        programs.run("all", steps)
        meet("all are idle")
        if is_last():
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(2):
            expect_failure(checker, programs.layer, programs.operands, f"rank {last}")
        membership = fabric.recover(step=3 if jax.process_index() == 0 else 4)
        assert membership.processes == tuple(range(last)), membership
        assert membership.step == 3, membership
        programs.run("without it", steps)
        membership = fabric.recover(step=5, rejoin=[last], timeout_s=60)
        assert membership.processes == tuple(range(last + 1)), membership
    assert fabric.membership.step == 5, fabric.membership
    programs.run("all again", steps)
    fabric.close()
    leave_in_order(range(1, last + 1))
