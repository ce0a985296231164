"""A simulated design as an execution of a graph: the same outputs, and what the hardware would take for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stoker.core.errors import ToolError
from stoker.deploy.engines.engine import IntegerEngine
from stoker.deploy.hardware.designing import chosen_foldings
from stoker.deploy.hardware.fitting import read_fit
from stoker.deploy.hardware.host_inputs import device_inputs
from stoker.deploy.hardware.verification import problem_of
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.package.folder import IntegerPackage
from stoker.deploy.rtl.engine.compiling import compiled
from stoker.deploy.rtl.engine.files import (
    PROGRAM,
    EngineDescription,
    described,
    is_engine,
    program_bytes,
    read_engine,
)
from stoker.deploy.rtl.generate import DesignDescription, design_files, read_design
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.updating import update_of
from stoker.deploy.tools.engine_simulation import engine_simulator
from stoker.deploy.tools.kept import kept
from stoker.deploy.tools.simulation import Outcome, Update
from stoker.deploy.tools.simulator_process import ProgramProcess, SimulatorProcess
from stoker.deploy.tools.verilator import simulator
from stoker.records.deploy.hardware import FittedDesign


@dataclass(frozen=True, kw_only=True)
class SimulatedDesign:
    """A design with the program that simulates it.

    Attributes:
        folder: of the design.
        description: of the design, or of an engine with the model on it.
        program: its simulator.
        news: updates that bring another package's numbers in before it answers; none where it is the package's own.
        fitted: on an FPGA, where ``stoker deploy fit`` has placed it.
        model: transfers that load the model on an engine; none for a dataflow design.
    """

    folder: Path
    description: DesignDescription | EngineDescription
    program: Path
    news: tuple[Update, ...]
    fitted: FittedDesign | None
    model: bytes = b""


def simulated_design(
    package: IntegerPackage, folder: Path | None = None, kept_in: Path | None = None
) -> SimulatedDesign:
    """A design of a package, and its simulator, built now where they are not kept.

    Args:
        package: whose design it is.
        folder: that ``stoker deploy rtl`` wrote, of this package, or an updatable one of a package of its structure, or
            an engine on which it fits; a design of the default size without one.
        kept_in: where what tools make is kept; the user's cache by default.

    Raises:
        MissingExtraError: Verilator is not installed.
        ToolError: a tool fails or takes too long.
        ValueError: an operation has no unit, or the folder holds no design, or one that cannot be this package's.
    """
    if folder is not None and is_engine(folder):
        return _engine_with(package, folder, kept_in)
    found = folder or _default_design(package, kept_in)
    description = read_design(found)
    news: tuple[Update, ...] = ()
    if description.source != package.digest:
        if description.updates is None:
            raise ValueError(f"`{found}` must be a design of this package, and was made from another; write it again")
        news = (Update(0, update_of(description, package.graph, package.digest)),)
    return SimulatedDesign(
        folder=found,
        description=description,
        program=simulator(found, kept_in),
        news=news,
        fitted=read_fit(found, description),
    )


def _engine_with(package: IntegerPackage, folder: Path, kept_in: Path | None) -> SimulatedDesign:
    """An engine, loaded with its model or with any other that fits: the netlist, and so the simulator, is the same."""
    description = read_engine(folder)
    fitted, model = read_fit(folder, description), (folder / PROGRAM).read_bytes()
    if description.source != package.digest:
        image = compiled(package.graph, description.shape)
        description, model = described(package.graph, image, package.digest, description), program_bytes(image)
    program = engine_simulator(folder, kept_in)
    return SimulatedDesign(
        folder=folder, description=description, program=program, news=(), fitted=fitted, model=model
    )  # fmt: skip


def _default_design(package: IntegerPackage, kept_in: Path | None) -> Path:
    texts = design_files(lower(package.graph, chosen_foldings(package.graph)), package.digest)

    def make(made: Path) -> None:
        for name, text in texts.items():
            (made / name).write_text(text, encoding="utf-8")

    return kept("design", [f"{name}\n{text}" for name, text in texts.items()], make, kept_in)


class SimulatedEngine(IntegerEngine):
    """Executes a graph on its simulated design, in a process that stays.

    Args:
        graph: that the design was made from.
        design: with its simulator.

    Attributes:
        first: what a sample through an empty design took.

    Raises:
        ToolError: the simulator does not run, or the design does not answer.
    """

    name = "rtl"

    def __init__(self, graph: IntegerGraph, design: SimulatedDesign) -> None:
        super().__init__(graph)
        self._design = design
        self._process: SimulatorProcess | ProgramProcess | None = None
        zeros = {port.value: np.zeros((1, *graph.value(port).shape), np.int32) for port in graph.inputs}
        self.first: Outcome = self._run(zeros)[1]

    def integers(self, values: Mapping[str, Integers]) -> dict[str, Integers]:
        """As every engine's."""
        found, _ = self._run(values)
        return {name: array.reshape(-1, *self.graph.values[name].shape) for name, array in found.items()}

    def close(self) -> None:
        """Ends its process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _run(self, values: Mapping[str, Integers]) -> tuple[dict[str, Integers], Outcome]:
        design = self._design
        tables = design.description.host_tables if isinstance(design.description, DesignDescription) else ()
        try:
            if self._process is None:  # or it has ended: the batch after it finds a fresh one
                self._process = self._started(values)
            found, outcome = self._process.run(device_inputs(self.graph, tables, values))
        except ToolError:
            self.close()
            raise
        problem = problem_of(outcome, design.description, len(next(iter(values.values()))))
        if problem:
            self.close()  # what stands still stays so
            raise ToolError(f"`{design.folder}` must answer each sample: {problem}")
        return dict(found), outcome

    def _started(self, values: Mapping[str, Integers]) -> SimulatorProcess | ProgramProcess:
        design = self._design
        if isinstance(design.description, EngineDescription):
            return ProgramProcess(design.program, design.folder, self.graph, design.description, design.model)
        process = SimulatorProcess(design.program, design.folder, design.description)
        if design.news:
            try:
                _, seen = process.run({name: array[:0] for name, array in values.items()}, design.news)
                if any(each.refused for each in seen.updates):
                    words = len(design.news[0].words)
                    raise ToolError(f"`{design.folder}` must take an update of {words} words, and refuses it")
            except ToolError:
                process.close()
                raise
        return process
