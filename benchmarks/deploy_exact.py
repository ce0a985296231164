"""Whether all executions of an integer model on a CPU give the same whole numbers on whole test sets."""

from __future__ import annotations

import sys
import time

import torch

from benchmarks.support.deployed import NETWORKS, task
from benchmarks.support.harness import Bar, Options, Report, run
from stoker.deploy.engines.ends import taken
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.engines.native.engine import CompiledEngine
from stoker.deploy.engines.onnx_engine import OnnxEngine
from stoker.deploy.importing.quantising import quantise

BAR = Bar(
    "deploy_exact",
    "five kinds of networks on whole numbers: NumPy, C++ and ONNX Runtime differ in no output of the test set",
    headline=("differing", "outputs"),
)


def measure(options: Options) -> Report:
    """Each network, trained, quantised, and executed three times."""
    torch.set_num_threads(1)
    report = Report()
    rows: list[list[str]] = []
    differing = outputs = 0
    for name in options.pick(tuple(NETWORKS), tuple(NETWORKS), ("mlp", "transformer")):
        trained = task(name, epochs=options.pick(20, 10, 1))
        started = time.monotonic()
        made = quantise(trained.module, trained.known, name=name)
        values = taken(made.graph, trained.unseen.arrays([port.name for port in made.graph.inputs]))
        wanted = NumpyEngine(made.graph).integers(values)
        count = sum(array.size for array in wanted.values())
        row = [name, str(len(made.graph.operations)), f"{count:,}"]
        for engine in (CompiledEngine(made.graph), OnnxEngine(made.graph)):
            found = engine.integers(values)
            wrong = sum(int((found[key] != array).sum()) for key, array in wanted.items())
            differing += wrong
            row.append(str(wrong))
        outputs += count
        accept = made.record.accept
        rows.append([*row, f"{accept.flips} of {accept.samples}", f"{time.monotonic() - started:.1f}"])
    report.table(["network", "operations", "outputs", "C++ differs", "ONNX differs", "flips", "s"], rows)
    report.figure("outputs", outputs)
    report.at_most("differing", "outputs that differ from the law", [float(differing)], 0, 0)
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
