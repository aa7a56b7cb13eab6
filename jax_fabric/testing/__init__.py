"""What tests of distributed programs need: oracles, routings, and launchers for several ranks.

* :mod:`~jax_fabric.testing.oracle`: dispatch, combine and a whole MoE layer in plain JAX on one
  device.
* :mod:`~jax_fabric.testing.routing`: routings of every kind that breaks exchanges, from a seed.
* :mod:`~jax_fabric.testing.launch`: a function or a script in several processes, with a deadline.
* :mod:`~jax_fabric.testing.simulated_fabric`: groups over a network that loses and reorders, by
  seed and on a virtual clock.
* :mod:`~jax_fabric.testing.fake_srd`: libfabric's EFA provider on a fake NIC.
* :mod:`~jax_fabric.testing.environment`: what must be in the environment before JAX starts.

Importing them starts nothing.
"""
