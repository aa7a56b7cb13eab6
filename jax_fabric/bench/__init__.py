"""Measurements beside other libraries: what ``jax-fabric bench`` runs.

Every benchmark runs all contenders in one run, in turn, so that whatever else the machine does hits
all of them, and gives rows (:mod:`~jax_fabric.bench.rows`). Contenders that need an environment of
their own lie in :mod:`jax_fabric.bench.peers`; ``benchmarks/peers/setup`` of the source makes it.
"""
