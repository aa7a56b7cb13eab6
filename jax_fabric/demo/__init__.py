"""Demonstrations: complete programs over jax_fabric, each checked against an oracle.

``jax-fabric demo moe`` runs :mod:`jax_fabric.demo.moe`. The modules are meant to be read, too:
:mod:`~jax_fabric.demo.model` is a transformer with MoE layers, :mod:`~jax_fabric.demo.training` one
jitted training step over all ranks.
"""
