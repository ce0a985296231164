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
from stoker.deploy.rtl.generate import DesignDescription, design_files, read_design
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.updating import update_of
from stoker.deploy.tools.kept import kept
from stoker.deploy.tools.simulation import Outcome, Update
from stoker.deploy.tools.simulator_process import SimulatorProcess
from stoker.deploy.tools.verilator import simulator
from stoker.records.deploy.hardware import FittedDesign


@dataclass(frozen=True, kw_only=True)
class SimulatedDesign:
    """A design with the program that simulates it.

    Attributes:
        folder: of the design.
        description: of the design.
        program: its simulator.
        news: updates that bring another package's numbers in before it answers; none where it is the package's own.
        fitted: on an FPGA, where ``stoker deploy fit`` has placed it.
    """

    folder: Path
    description: DesignDescription
    program: Path
    news: tuple[Update, ...]
    fitted: FittedDesign | None


def simulated_design(
    package: IntegerPackage, folder: Path | None = None, kept_in: Path | None = None
) -> SimulatedDesign:
    """A design of a package, and its simulator, built now where they are not kept.

    Args:
        package: whose design it is.
        folder: that ``stoker deploy rtl`` wrote, of this package, or an updatable one of a package of its structure; a
            design of the default size without one.
        kept_in: where what tools make is kept; the user's cache by default.

    Raises:
        MissingExtraError: Verilator is not installed.
        ToolError: a tool fails or takes too long.
        ValueError: an operation has no unit, or the folder holds no design, or one that cannot be this package's.
    """
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
        self._process: SimulatorProcess | None = None
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
        news: tuple[Update, ...] = ()
        if self._process is None:  # or it has ended: the batch after it finds a fresh one
            self._process = SimulatorProcess(design.program, design.folder, design.description)
            news = design.news
        try:
            if news:
                _, seen = self._process.run({name: array[:0] for name, array in values.items()}, news)
                if any(each.refused for each in seen.updates):
                    raise ToolError(
                        f"`{design.folder}` must take an update of {len(news[0].words)} words, and refuses it"
                    )
            sent = device_inputs(self.graph, design.description.host_tables, values)
            found, outcome = self._process.run(sent)
        except ToolError:
            self.close()
            raise
        problem = problem_of(outcome, design.description, len(next(iter(values.values()))))
        if problem:
            self.close()  # what stands still stays so
            raise ToolError(f"`{design.folder}` must answer each sample: {problem}")
        return dict(found), outcome
