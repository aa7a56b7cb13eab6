"""A process asks another one for pages of memory. Run: python examples/host_api.py"""

import json
import multiprocessing
from multiprocessing.connection import Connection

import numpy as np

from jax_fabric import engine, memory

PAGE_NBYTES = 4096


def owner(pipe: Connection) -> None:
    """Has pages; whoever sends a message with indices and a place gets them."""
    with engine.TransferEngine() as fabric:
        group = fabric.add_group("owner")
        pool = group.register(np.repeat(np.arange(256, dtype=np.uint8), PAGE_NBYTES))

        def serve(peer: engine.Peer, message: bytes) -> None:
            request = json.loads(message)
            target = memory.RemoteMemory(bytes.fromhex(request["target"]))
            pages = np.array(request["pages"])
            group.write_pages(
                peer,
                pool,
                pages,
                target,
                np.arange(len(pages)),
                page_nbytes=PAGE_NBYTES,
                immediate=request["immediate"],
            )

        pipe.send(group.address())
        group.wait_peers([group.add_peer(pipe.recv())])
        group.receive_messages(serve)
        pipe.recv()  # until the other side has what it wants


def main() -> list[int]:
    context = multiprocessing.get_context("spawn")
    pipe, other_end = context.Pipe()
    process = context.Process(target=owner, args=(other_end,), daemon=True)
    process.start()
    with engine.TransferEngine() as fabric:
        group = fabric.add_group("asker")
        wanted = [7, 250, 42]
        buffer = memory.allocate((len(wanted), PAGE_NBYTES))
        region = group.register(buffer, memory.Access.REMOTE_WRITE)
        immediates = group.allocate_immediates(1)

        pipe.send(group.address())
        peer = group.add_peer(pipe.recv())
        group.wait_peers([peer])
        request = {
            "pages": wanted,
            "target": bytes(region.descriptor).hex(),
            "immediate": immediates[0],
        }
        group.send(peer, json.dumps(request).encode())
        group.expect(immediates[0], len(wanted)).wait()  # one immediate for each page
        pipe.send("done")
        process.join()
        return buffer[:, 0].tolist()


if __name__ == "__main__":
    print(f"the first bytes of the pages that came: {main()}")
