"""What jax_fabric is measured against.

* :mod:`~jax_fabric.bench.peers.plain_jax`: the same dispatch and combine out of JAX's operations.
* :mod:`~jax_fabric.bench.peers.lean_jax`: the least of it that serves an expert that does nothing.
* :mod:`~jax_fabric.bench.peers.mpi`: what both need to run over mpi4jax.
"""
