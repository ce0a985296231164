"""One netlist for several models: all outputs the law's, how busy the array is, what a change of models costs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.support.harness import Bar, Options, Report, run

BAR = Bar(
    "deploy_engine",
    "trained models as programs of one netlist, simulated over whole test sets with and without pauses: 0 differing "
    "outputs; the array, for a depthwise one the lanes, busy at least 60 % of a convolution of 8 and more channels; "
    "another model in the place of one that answers within 1.1 times its bytes by the bus's, 0 mixed outputs",
    headline=("differing", "busy_frac", "update_ratio", "mixed"),
)
MODELS = ("residual", "mlp", "depthwise", "tower", "transformer")
QUICK = ("mlp", "residual", "transformer")
CHANNELS = 8
_BUS_BYTES = 4


def measure(options: Options) -> Report:
    """All five models, or three."""
    report = Report()
    try:
        import torch

        from benchmarks.support.deployed import task
        from stoker.deploy.engines.ends import taken
        from stoker.deploy.hardware.engines import verify_engine, write_model
        from stoker.deploy.importing.quantising import quantise
        from stoker.deploy.ir.operations import Convolution
        from stoker.deploy.rtl.engine.files import netlist
        from stoker.deploy.rtl.engine.shape import EngineShape
    except ImportError as error:
        report.skip(str(error))
        return report
    torch.set_num_threads(1)
    shape = EngineShape()
    differing, off, busy = [], [], []
    rows: list[list[str]] = []
    layers: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name:
        for model in options.pick(MODELS, QUICK, QUICK[:1]):
            made = task(model, epochs=options.pick(20, 5, 1))
            graph = quantise(made.module, made.known, name=model).graph
            folder = Path(name, model)
            summary = write_model(graph, shape, folder)
            assert all((folder / file).read_text() == text for file, text in netlist(shape).items())
            arrays = made.unseen.arrays([port.name for port in graph.inputs])
            sent = {key: array[: options.pick(None, 100, 20)] for key, array in arrays.items()}
            found = verify_engine(graph, folder, taken(graph, sent))
            for way in found.ways:
                differing.append(float(way.differing) if not way.problem else float(way.outputs))
                if way.way == "back to back":
                    off.append(abs(way.interval / found.cycles - 1))
                rows.append([
                    model, way.way, f"{way.outputs:,}", f"{way.differing:,} {way.problem}".strip(),
                    f"{way.interval:,.1f}", f"{found.cycles:,}",
                ])  # fmt: skip
            for layer in summary.layers:
                operation = graph.producer(layer.layer)
                if not isinstance(operation, Convolution):
                    continue
                depth = graph.values[operation.source].shape[2]
                alone = operation.groups > 1
                layers.append([
                    model, layer.layer, f"{depth}", "a lane a channel" if alone else "array", f"{layer.cycles:,}",
                    f"{100 * layer.lanes_frac:.0f} %",
                ])  # fmt: skip
                if depth >= CHANNELS:
                    busy.append(layer.lanes_frac)
        ratio, mixed, versions = _changed(Path(name), options)
    report.table(["model", "sent", "outputs", "differ", "cycles a sample", "closed form"], rows)
    report.table(["model", "convolution", "channels", "by", "cycles", "products by multipliers x cycles"], layers)
    report.note(f"one netlist, its files compared: an array of {shape.lanes} x {shape.lanes}, {shape}")
    report.note("cycles of a layer include its border and copies; lanes that hold no channel form no product")
    report.note(f"changes of models: samples of the old and the new one {versions}")
    report.at_most("differing", "outputs that differ from the law's, worst run", [max(differing)], 0, 0)
    report.at_most("pace_off_frac", "measured cycles over the closed form's, less 1, worst model", [max(off)], 0.01, 4)
    if busy:
        report.at_least(
            "busy_frac", f"products by the array's or lanes', least of convolutions of {CHANNELS} and more channels",
            [min(busy)], 0.6, 2,
        )  # fmt: skip
    report.at_most("update_ratio", "cycles of a change by bytes by the bus's 4, worst", [max(ratio)], 1.1, 3)
    report.at_most("mixed", "outputs that are wholly of neither model, all changes", [float(mixed)], 0, 0)
    return report


def _changed(folder: Path, options: Options) -> tuple[list[float], int, list[str]]:
    """Models of the same ends that take over in mid-stream: cycles by bytes, outputs of neither, samples of both."""
    from benchmarks.support.deployed import task
    from stoker.deploy.engines.ends import taken
    from stoker.deploy.hardware.engines import write_model
    from stoker.deploy.hardware.verification import law_of
    from stoker.deploy.importing.quantising import quantise
    from stoker.deploy.rtl.engine.files import read_engine
    from stoker.deploy.rtl.engine.shape import EngineShape
    from stoker.deploy.tools.engine_simulation import LoadedModel, engine_simulator, simulate_engine
    from stoker.deploy.tools.simulation import Stalls

    # Networks of different shapes and weights, with the same ends: digits in, ten scores out.
    kinds = [("mlp", 0), ("mlp", 1), *options.pick([("residual", 0), ("transformer", 0)], [("residual", 0)], [])]
    graphs, folders = [], []
    for at, (kind, seed) in enumerate(kinds):
        made = task(kind, seed=seed, epochs=1)
        graphs.append((quantise(made.module, made.known, name=kind).graph, made))
        folders.append(folder / f"change{at}")
        write_model(graphs[-1][0], EngineShape(), folders[-1])
    program = engine_simulator(folders[0])
    ratios: list[float] = []
    versions: list[str] = []
    mixed = 0
    for at in range(len(kinds)):
        to = (at + 1) % len(kinds)
        graph, made = graphs[at]
        inputs = taken(graph, made.unseen.arrays([port.name for port in graph.inputs]))
        # The same whole numbers go into both, within both ranges: an engine takes numbers, not what they stand for.
        (entry,), (other,) = graph.inputs, graphs[to][0].inputs
        values = graph.value(entry), graphs[to][0].value(other)
        numbers = inputs[entry.value].clip(max(each.low for each in values), min(each.high for each in values))
        inputs = {entry.value: numbers}
        laws = [
            law_of(graph, inputs),
            law_of(graphs[to][0], {other.value: numbers.reshape(len(numbers), *values[1].shape)}),
        ]
        own, new = (next(iter(law.values())) for law in laws)
        for stalls in (Stalls(seed=1), Stalls(seed=2, before=0.3, after=0.3)):
            found, seen = simulate_engine(
                program, folders[at], graph, inputs, stalls=stalls, update=LoadedModel(folder=folders[to], after=20)
            )
            got = next(iter(found.values()))
            is_own, is_new = (got == own).all(axis=1), (got == new).all(axis=1)
            switched = int(is_own.argmin()) if not is_own.all() else len(got)
            mixed += int((~is_own[:switched]).sum() + (~is_new[switched:]).sum()) + len(own) - len(got)
            ratios.append(seen.update_cycles * _BUS_BYTES / read_engine(folders[to]).bytes)
            versions.append(f"{switched} {kinds[at][0]}, {len(got) - switched} {kinds[to][0]}")
    return ratios, mixed, versions


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
