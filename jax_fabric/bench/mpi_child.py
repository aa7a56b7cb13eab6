"""What mpiexec runs for :mod:`jax_fabric.bench.mpi_launch`. Not for direct use."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path


def main(folder: Path, port: str, processes: int) -> None:
    """Joins the other processes by both MPI and jax.distributed, runs, leaves the rows behind."""
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    import jax

    address = f"127.0.0.1:{port}"
    jax.distributed.initialize(
        coordinator_address=address,
        coordinator_bind_address=address,  # loopback only
        num_processes=processes,
        process_id=rank,
    )
    from jax_fabric.bench import moe

    rows = moe.run(pickle.loads((folder / "config.pickle").read_bytes()))
    if rank == 0:
        (folder / "rows.pickle").write_bytes(pickle.dumps(rows))
    MPI.COMM_WORLD.Barrier()
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
