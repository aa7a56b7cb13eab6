"""``jax-fabric doctor``: what is there, what is missing, and what mends it."""

from jax_fabric.observe.doctor import report
from jax_fabric.observe.doctor.examine import EXPECTABLE, examine
from jax_fabric.observe.doctor.finding import Finding, State

__all__ = ["EXPECTABLE", "Finding", "State", "examine", "report"]
