"""Starts moe.py on every node of a Ray cluster, a process each. Run: python ray_start.py"""

import os
import runpy
import tempfile
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PORT = 1234


@ray.remote(max_retries=0)
def run(process: int, processes: int, coordinator: str, script: str) -> None:
    os.environ |= {
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_NUM_PROCESSES": str(processes),
        "JAX_PROCESS_ID": str(process),
    }
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(script)
        file.flush()
        runpy.run_path(file.name, run_name="__main__")


if __name__ == "__main__":
    ray.init(address="auto")
    nodes = [node for node in ray.nodes() if node["Alive"]]
    coordinator = f"{nodes[0]['NodeManagerAddress']}:{PORT}"
    script = Path(__file__).with_name("moe.py").read_text()
    ray.get(
        [
            run.options(
                num_gpus=int(node["Resources"].get("GPU", 0)),
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            ).remote(process, len(nodes), coordinator, script)
            for process, node in enumerate(nodes)
        ]
    )
