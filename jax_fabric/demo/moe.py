"""``jax-fabric demo moe``: trains a mixture-of-experts transformer over ranks and checks it.

JAX must see the ranks' devices when it starts (:mod:`jax_fabric.testing.environment`); :func:`main`
sees to that.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jax_fabric as jf
from jax_fabric.demo import checks, measure, model, text, training
from jax_fabric.demo.config import DemoConfig
from jax_fabric.demo.report import Report, write_json, write_plot
from jax_fabric.testing import environment, fake_srd, launch

_LAUNCH_TIMEOUT_S = 540.0


@dataclasses.dataclass(frozen=True)
class Output:
    """Where results go besides the terminal.

    Attributes:
      json: a file for all figures.
      plot: a picture of the loss; needs matplotlib.
    """

    json: Path | None = None
    plot: Path | None = None


def main(config: DemoConfig, output: Output) -> int:
    """Runs the demonstration in this process, or in as many as `config` says.

    Returns:
      0 if every check passed in every process, else 1.
    """
    if config.processes == 1:
        environment.prepare_cpu(config.ranks)
        return 0 if run(config, output) else 1
    try:
        results = launch.run(
            "jax_fabric.demo.moe:run",
            config,
            output,
            processes=config.processes,
            local_devices=config.local_ranks,
            timeout_s=_LAUNCH_TIMEOUT_S,
            share_stdout=0,
        )
    except launch.LaunchError as error:
        print(error)
        return 1
    return 0 if all(result.value for result in results) else 1


def run(config: DemoConfig, output: Output) -> bool:
    """Runs this process's part; the first process reports.

    Returns:
      Whether every check passed; the same in all processes.
    """
    begin = time.monotonic()
    reports = jax.process_index() == 0
    report = Report(silent=not reports)
    mesh = jax.make_mesh((config.ranks,), (model.AXIS,))
    corpus = text.load()
    parameters = model.init_parameters(config, len(corpus.alphabet))

    def batch(step: int) -> np.ndarray:
        rows, length = config.ranks * config.rows, config.sequence + 1
        return corpus.batch(step, rows=rows, length=length, seed=config.seed)

    provider = fake_srd.load() if config.provider == fake_srd.NAME else config.provider
    with jf.Fabric(
        mesh, timeout_s=config.timeout_s, domain=config.domain, provider=provider
    ) as fabric:
        moe = jf.moe.ExpertParallel(
            fabric,
            axis_name=model.AXIS,
            num_experts=config.experts,
            top_k=config.top_k,
            max_tokens=config.tokens,
            private_tokens=config.private_tokens,
            hidden=config.hidden,
            dtype=jnp.dtype(config.dtype),
        )
        size = sum(leaf.size for leaf in jax.tree.leaves(parameters))
        report.configuration(config, parameters=size, fabric_bytes=moe.memory_bytes())
        trainer = training.Trainer(config, mesh, model.fabric_layer(moe))

        report.phase("exchanging rows, compared bit by bit ...")
        found = checks.check_exchange(config, moe, trainer)
        report.phase("compiling a training step; its gradients compared with one device ...")
        state = trainer.initial_state(parameters)
        state, first = trainer.step(state, trainer.place_batch(batch(0)))
        found += checks.check_model(config, parameters, batch(0), first)

        losses = [float(first.loss)]
        with report.training(config.steps, losses[0]) as show:
            for step in range(1, config.steps):
                state, evaluation = trainer.step(state, trainer.place_batch(batch(step)))
                losses.append(float(evaluation.loss))
                show(losses[-1])
        found.append(checks.check_training(losses))

        report.phase("timing dispatch and combine ...")
        measurement = measure.measure(config, moe, trainer)
        fabric.check()

    found = checks.worst_of_all(found)
    report.results(losses, found, measurement)
    if reports and output.json:
        write_json(output.json, config, losses, found, measurement)
    if reports and output.plot:
        write_plot(output.plot, config, losses)
    report.closing(config, found, time.monotonic() - begin)
    return all(check.passed for check in found)
