"""Designs of trained models give the law's outputs on whole test sets; dataflow ones at the pace of the closed form."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.support.harness import Bar, Options, Report, run

BAR = Bar(
    "deploy_exact_rtl",
    "dataflow designs of an MLP, a residual and a depthwise CNN and a recommender's tower, and these and a transformer "
    "block on an engine, simulated over whole test sets, back to back, with pauses on both sides, to a slow reader: 0 "
    "differing outputs, cycles of dataflow designs within 1 % of the closed form",
    headline=("differing", "pace_off_frac", "module_to_verdict_s"),
)
MODELS = ("residual", "mlp", "depthwise", "tower", "transformer")
ENGINE_ALONE = ("transformer",)
"""What a dataflow design has no units for."""
QUICK = MODELS[:1]
_QUICK_S = 40.0


def measure(options: Options) -> Report:
    """All models on both structures, or the residual one."""
    report = Report()
    try:
        import torch

        from benchmarks.support.deployed import task
        from stoker.deploy.engines.ends import taken
        from stoker.deploy.hardware.designing import chosen_foldings, design
        from stoker.deploy.hardware.engines import verify_engine, write_model
        from stoker.deploy.hardware.verification import verify
        from stoker.deploy.importing.quantising import quantise
        from stoker.deploy.rtl.engine.shape import EngineShape
        from stoker.deploy.tools.verilator import runtime

        runtime()  # Verilator's own runtime, compiled once a machine: not part of the claim
    except ImportError as error:
        report.skip(str(error))
        return report
    torch.set_num_threads(1)
    differing, off, seconds = [], [], []
    rows: list[list[str]] = []
    for name in options.pick(MODELS, QUICK, QUICK):
        made = task(name, epochs=options.pick(20, 10, 1))
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            # Simulators are kept beside the design, so that each round pays for its own.
            graph = quantise(made.module, made.known, name=name).graph
            arrays = made.unseen.arrays([port.name for port in graph.inputs])
            sent = taken(graph, {key: array[: options.pick(None, None, 40)] for key, array in arrays.items()})
            found = {}
            if name not in ENGINE_ALONE:
                design(graph, chosen_foldings(graph), Path(folder, "design"))
                found["dataflow"] = verify(graph, Path(folder, "design"), sent, kept_in=Path(folder, "kept"))
                seconds.append(time.monotonic() - begun)
            write_model(graph, EngineShape(), Path(folder, "engine"))
            found["engine"] = verify_engine(graph, Path(folder, "engine"), sent)
        for structure, verified in found.items():
            for way in verified.ways:
                problem = f" ({way.problem})" if way.problem else ""
                differing.append(float(way.differing) if not way.problem else float(way.outputs))
                if structure == "dataflow":  # an engine does not read ahead, so pauses of the sender cost it cycles
                    off.append(abs(way.interval / verified.cycles - 1))
                rows.append([
                    name, structure, way.way, f"{way.outputs:,}", f"{way.differing:,}{problem}",
                    f"{way.interval:,.1f}", f"{verified.cycles:,}",
                ])  # fmt: skip
    report.table(["model", "structure", "sent", "outputs", "differ", "cycles a sample", "closed form"], rows)
    report.note("scikit-learn's digits; 24 multipliers in arrays; Verilator, its runtime compiled beforehand")
    report.at_most("differing", "outputs that differ from the law's, worst run", [max(differing)], 0, 0)
    report.at_most("pace_off_frac", "measured cycles over the closed form's, less 1, worst run", [max(off)], 0.01, 4)
    if options.size != "tiny":
        report.at_most(
            "module_to_verdict_s", "from the trained module to the verdict, residual CNN",
            seconds[:1], _QUICK_S, 1, "s",
        )  # fmt: skip
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
