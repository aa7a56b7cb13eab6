"""Mixture-of-experts: dispatch and combine as jittable, differentiable operations."""

from jax_fabric.moe.config import ExpertParallelConfig
from jax_fabric.moe.expert_parallel import ExpertParallel, save_exchanges
from jax_fabric.moe.routes import Dispatched, Routes
from jax_fabric.moe.started import StartedCombine, StartedDispatch

__all__ = [
    "Dispatched",
    "ExpertParallel",
    "ExpertParallelConfig",
    "Routes",
    "StartedCombine",
    "StartedDispatch",
    "save_exchanges",
]
