"""Packages of integer models as models of a service: by C++, by ONNX Runtime, or by a design that is simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from stoker.deploy.engines.engine import IntegerEngine
from stoker.deploy.engines.native.engine import CompiledEngine
from stoker.deploy.engines.onnx_engine import OnnxEngine
from stoker.deploy.hardware.simulated_engine import SimulatedDesign, SimulatedEngine, simulated_design
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.row_numbers import highs_of_caller
from stoker.deploy.ir.values import ModelPort
from stoker.deploy.package.folder import read_package
from stoker.serve.engine import ANY, Arrays, Interface, TensorSpec

PackageEngineName = Literal["int", "onnx", "rtl"]
Facts = Mapping[str, str | int | float | bool]
_PLATFORMS = {"int": "stoker_integer", "onnx": "onnxruntime", "rtl": "stoker_rtl"}


class PackageModel:
    """A package that is read once; engines share its numbers.

    Args:
        path: of the folder.
        engine: what computes: ``int``, whose C++ is compiled here if it was not before, ``onnx``, or ``rtl``, whose
            simulator is built here.
        threads: of an engine of ONNX Runtime; others have one.
        design: folder of the design, for ``rtl``; one of the default size is made without it.

    Raises:
        PackageError: it is missing or damaged.
        RuntimeError: no compiler is there, or it fails.
        MissingExtraError: what reads, computes or simulates is not installed.
        ToolError: the simulator cannot be built.
        ValueError: an operation has no unit, or the design is not one of this package.
    """

    def __init__(self, path: Path, engine: PackageEngineName, threads: int, design: Path | None = None) -> None:
        self._package = read_package(path)
        self._threads = threads
        self._compiled = CompiledEngine(self._package.graph) if engine == "int" else None
        self._design = simulated_design(self._package, design) if engine == "rtl" else None

    @property
    def in_any_thread(self) -> bool:
        """Whether an engine has neither threads nor a simulator."""
        return self._design is None and (self._compiled is not None or self._threads == 1)

    def engine(self) -> PackageEngine:
        """An engine of this process: threads of ONNX Runtime and a simulator's pipes are its own."""
        graph, digest = self._package.graph, self._package.digest
        if self._compiled is not None:
            return PackageEngine(self._compiled, "int", digest)
        if self._design is not None:
            made = SimulatedEngine(graph, self._design)
            return PackageEngine(made, "rtl", digest, facts_of(self._design, made.first.latency()))
        return PackageEngine(OnnxEngine(graph, threads=self._threads), "onnx", digest)


class PackageEngine:
    """Runs an integer graph on a caller's arrays.

    Args:
        engine: that computes.
        name: of the engine.
        digest: of the package; its beginning goes with each answer.
        facts: that go with each answer as well.
    """

    def __init__(
        self, engine: IntegerEngine, name: PackageEngineName, digest: str, facts: Facts | None = None
    ) -> None:  # fmt: skip
        self._engine = engine
        parameters = {"package": digest[:12], **(facts or {})}
        inputs = _specs(engine.inputs, engine.graph)
        self.interface = Interface(inputs, _specs(engine.outputs), _PLATFORMS[name], parameters)

    def run(self, inputs: Arrays) -> Arrays:
        """The outputs for the inputs."""
        return self._engine(inputs)

    def close(self) -> None:
        """Ends what it started: the process of a simulated design."""
        if isinstance(self._engine, SimulatedEngine):
            self._engine.close()


def facts_of(design: SimulatedDesign, latency_cycles: int) -> Facts:
    """What the hardware would take for a sample: in cycles, and in time where the design was placed.

    Args:
        design: that answers.
        latency_cycles: of a sample through an empty design, simulated.
    """
    facts: dict[str, str | int | float | bool] = {
        "simulated": True, "cycles": design.description.cycles, "latency_cycles": latency_cycles,
    }  # fmt: skip
    if (fitted := design.fitted) is not None and fitted.clock_mhz is not None:
        facts |= {
            "estimated_on": fitted.device, "estimated_clock_mhz": round(fitted.clock_mhz, 2),
            "estimated_latency_us": round(latency_cycles / fitted.clock_mhz, 3),
        }  # fmt: skip
    return facts


def _specs(ports: Iterable[ModelPort], graph: IntegerGraph | None = None) -> tuple[TensorSpec, ...]:
    """The tensors of outputs, or those of inputs with their row numbers, which the graph has."""

    def spec(port: ModelPort) -> TensorSpec:
        dtype, shape = np.dtype(port.dtype), (ANY, *port.shape)
        if graph is None or port.dtype != "int64":
            return TensorSpec(port.name, dtype, shape)
        value = graph.value(port)
        highs = tuple(highs_of_caller(port, value).ravel().tolist()) if value.highs else ()
        return TensorSpec(port.name, dtype, shape, (value.low, value.high), highs)

    return tuple(spec(port) for port in ports)
