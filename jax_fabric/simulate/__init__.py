"""How long MoE exchanges would take on NICs that are not here: a model, see docs/model.md.

``jax-fabric simulate`` is its command. Nothing in this package measures anything.
"""
