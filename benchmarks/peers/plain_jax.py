"""The peer "plain JAX" lies in the package, where ``jax-fabric bench`` finds it."""

from jax_fabric.bench.peers.plain_jax import Dispatched, PlainExpertParallel

__all__ = ["Dispatched", "PlainExpertParallel"]
