"""The receiving process of the doctor's self-test: lines of JSON on stdin and stdout."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from jax_fabric import engine, errors, memory


def main() -> None:
    """Receives until stdin ends."""
    try:
        _serve(_next())
    except errors.FabricError as error:
        _say({"error": str(error)})


def _serve(order: Any) -> None:
    secret = bytes.fromhex(order["secret"])
    with engine.TransferEngine(timeout_s=order["timeout_s"], secret=secret) as transfers:
        group = transfers.add_group(
            "doctor's peer",
            domain=order["domain"],
            provider=order["provider"],
            nics=order["nics"],
        )
        access = memory.Access.REMOTE_WRITE
        regions = {
            "shared": group.register(memory.allocate(order["nbytes"]), access),
            "array": group.register(np.zeros(order["nbytes"], np.uint8), access),
        }
        (immediate,) = group.allocate_immediates(1)
        peer = group.add_peer(bytes.fromhex(_next()["address"]))
        targets = {kind: bytes(region.descriptor).hex() for kind, region in regions.items()}
        _say({"address": group.address().hex(), "immediate": immediate, **targets})
        group.wait_peers([peer])
        each = group.write_immediates(peer, order["nbytes"])
        while request := _next():
            group.expect(immediate, request["rounds"] * each).wait()
            words = regions[request["check"]].array.view(np.uint32)
            _say({"seen": int(words.sum(dtype=np.uint64))})


def _next() -> Any:
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def _say(message: Any) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
