"""The transfer engine for host code: writes, messages, counters and watchers.

A :class:`TransferEngine` has groups, one for each device; a :class:`DomainGroup` has peers,
registered memory (:mod:`jax_fabric.memory`), and all requests. Every wait has a deadline; what goes
wrong is an exception of :mod:`jax_fabric.errors`. docs/host_api.md shows how to use it.
"""

from jax_fabric.engine.barrier_target import BarrierTarget
from jax_fabric.engine.domain_group import DomainGroup
from jax_fabric.engine.expectation import Expectation
from jax_fabric.engine.native_callback import NativeCallback
from jax_fabric.engine.pages import Pages
from jax_fabric.engine.peer import Peer
from jax_fabric.engine.pending import Pending
from jax_fabric.engine.prepared_scatter import PreparedScatter
from jax_fabric.engine.revocation import Revocation
from jax_fabric.engine.scatter_entry import ScatterEntry
from jax_fabric.engine.transfer import Transfer
from jax_fabric.engine.transfer_engine import TransferEngine
from jax_fabric.engine.watcher import Watcher
from jax_fabric.engine.write_grant import WriteGrant

__all__ = [
    "BarrierTarget",
    "DomainGroup",
    "Expectation",
    "NativeCallback",
    "Pages",
    "Peer",
    "Pending",
    "PreparedScatter",
    "Revocation",
    "ScatterEntry",
    "Transfer",
    "TransferEngine",
    "Watcher",
    "WriteGrant",
]
