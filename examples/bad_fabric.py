"""A protocol of one's own on a network that misbehaves. Run: python examples/bad_fabric.py [seed]

The protocol: rank 0 gives every other rank a piece of an array, and waits until all have said that
they have it. It must not matter in which order anything comes.
"""

import sys

import numpy as np

from jax_fabric.memory import Access, RemoteMemory
from jax_fabric.testing.simulated_fabric import SimulatedFabric

RANKS = 4
PIECE = 1000


def share(fabric: SimulatedFabric) -> list[np.ndarray]:
    """Runs the protocol with all ranks in this thread; returns what each of them got."""
    groups = [fabric.add_group(f"rank {rank}") for rank in range(RANKS)]
    root = groups[0]
    (got_it,) = root.allocate_immediates(1)
    # Any memory of rank 0's: an immediate without bytes names one, too.
    word = root.register(np.zeros(1, np.uint8), Access.REMOTE_WRITE)
    word_of_root = RemoteMemory(bytes(word.descriptor))

    pieces = root.register(np.arange(RANKS * PIECE, dtype=np.int64))
    regions = []  # a region that is dropped takes no writes any more
    for rank, group in enumerate(groups[1:], start=1):
        region = group.register(np.zeros(PIECE, np.int64), Access.REMOTE_WRITE)
        (arrived,) = group.allocate_immediates(1)
        to_root = group.add_peer(root.address())

        def answer(transfer, group=group, to_root=to_root):
            group.write(to_root, None, word_of_root, nbytes=0, immediate=got_it)

        group.expect(arrived).add_done_callback(answer)
        root.write(
            root.add_peer(group.address()),
            pieces,
            RemoteMemory(bytes(region.descriptor)),
            source_offset=rank * PIECE * 8,
            nbytes=PIECE * 8,
            immediate=arrived,
        )
        regions.append(region)
    root.expect(got_it, count=RANKS - 1).wait()
    return [region.array for region in regions]


def main(seed: int) -> None:
    with SimulatedFabric(
        seed=seed, reorder_s=100e-6, segment_nbytes=512, loss=0.2, again=0.3, early_completion=0.5
    ) as fabric:
        for rank, result in enumerate(share(fabric), start=1):
            np.testing.assert_array_equal(result, np.arange(rank * PIECE, (rank + 1) * PIECE))
        lost, late = fabric.retransmissions, fabric.reordered_segments
        print(f"seed {seed}: everybody has it; {lost} segments lost, {late} out of order")


if __name__ == "__main__":
    for each in [int(sys.argv[1])] if len(sys.argv) > 1 else range(100):
        main(each)
