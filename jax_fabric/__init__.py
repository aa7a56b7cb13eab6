"""Point-to-point RDMA for JAX programs."""

from jax_fabric import moe
from jax_fabric.engine.native_callback import NativeCallback
from jax_fabric.fabric import Fabric
from jax_fabric.secret import Secret
from jax_fabric.steps import run_steps
from jax_fabric.watcher import ProgramWatcher, bump

__version__ = "0.1.0"

__all__ = [
    "Fabric",
    "NativeCallback",
    "ProgramWatcher",
    "Secret",
    "__version__",
    "bump",
    "moe",
    "run_steps",
]
