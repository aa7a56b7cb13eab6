"""How the ranks of a fabric find each other."""

from jax_fabric.bootstrap.exchange import Bootstrap, JaxDistributedBootstrap, LocalBootstrap

__all__ = ["Bootstrap", "JaxDistributedBootstrap", "LocalBootstrap"]
