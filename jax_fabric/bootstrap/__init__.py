"""How the ranks of a fabric find each other."""

from jax_fabric.bootstrap.address_bootstrap import AddressBootstrap
from jax_fabric.bootstrap.exchange import (
    Bootstrap,
    JaxDistributedBootstrap,
    LocalBootstrap,
    default_bootstrap,
)
from jax_fabric.bootstrap.file_bootstrap import FileBootstrap
from jax_fabric.bootstrap.shared_secret import agree_on_secret

__all__ = [
    "AddressBootstrap",
    "Bootstrap",
    "FileBootstrap",
    "JaxDistributedBootstrap",
    "LocalBootstrap",
    "agree_on_secret",
    "default_bootstrap",
]
