"""The C++ engine against eager torch on floats, one thread, processor time of both in turns."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.support.deployed import task
from benchmarks.support.harness import Bar, Options, Report, alternate, no_collections, ratios, run
from stoker.deploy.engines.native.engine import CompiledEngine
from stoker.deploy.importing.quantising import quantise

BAR = Bar(
    "deploy_cpu",
    "a residual network, one thread: eager torch takes 5 times the C++ engine's time for one image, 1.2 times for 32",
    headline=("batch_1", "batch_32"),
)
_BOUNDS = {1: 5.0, 32: 1.2}


def measure(options: Options) -> Report:
    """Both, for one image and for 32 at once."""
    torch.set_num_threads(1)
    report = Report()
    trained = task("residual", epochs=options.pick(5, 3, 1))
    graph = quantise(trained.module, trained.known).graph
    engine = CompiledEngine(graph)
    name = graph.inputs[0].name
    rows: list[list[str]] = []
    for batch, bound in _BOUNDS.items():
        images = trained.unseen.inputs[0][:batch].contiguous()
        arrays = {name: np.asarray(images.numpy())}
        calls = max(1, options.pick(4000, 1000, 20) // batch)

        def eager(images: torch.Tensor = images) -> None:
            with torch.inference_mode():
                trained.module(images)

        def compiled(arrays: dict[str, np.ndarray] = arrays) -> None:
            engine(arrays)

        found = alternate(
            options.rounds,
            {"torch": lambda f=eager, n=calls: _image_us(f, n), "c++": lambda f=compiled, n=calls: _image_us(f, n)},
        )
        for side, times in found.items():
            rows.append([side, str(batch), f"{sorted(times)[len(times) // 2] / batch:.1f}"])
        report.at_least(f"batch_{batch}", f"torch over C++, batch {batch}", ratios(found["torch"], found["c++"]), bound)
    report.table(["engine", "batch", "us of processor an image"], rows)
    return report


def _image_us(call: Callable[[], None], calls: int) -> float:
    """Processor time of a call."""
    for _ in range(3):
        call()
    with no_collections():
        started = time.process_time()
        for _ in range(calls):
            call()
        return (time.process_time() - started) / calls * 1e6


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
