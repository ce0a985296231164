"""Packages of integer models as models of a service: by the engine in C++, or by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np

from stoker.deploy.engines.engine import IntegerEngine
from stoker.deploy.engines.native.engine import CompiledEngine
from stoker.deploy.engines.onnx_engine import OnnxEngine
from stoker.deploy.ir.values import ModelPort
from stoker.deploy.package.folder import read_package
from stoker.serve.engine import ANY, Arrays, Interface, TensorSpec

_PLATFORMS = {"int": "stoker_integer", "onnx": "onnxruntime"}


class PackageModel:
    """A package that is read once; engines share its numbers.

    Args:
        path: of the folder.
        engine: what computes: ``int``, whose C++ is compiled here if it was not before, or ``onnx``.
        threads: of an engine of ONNX Runtime; that in C++ has one.

    Raises:
        PackageError: it is missing or damaged.
        RuntimeError: no compiler is there, or it fails.
        MissingExtraError: what reads or computes is not installed.
    """

    def __init__(self, path: Path, engine: Literal["int", "onnx"], threads: int) -> None:
        self._package = read_package(path)
        self._threads = threads
        self._compiled = CompiledEngine(self._package.graph) if engine == "int" else None

    def engine(self) -> PackageEngine:
        """An engine of this process; a session of ONNX Runtime has threads, which no fork survives."""
        made = self._compiled or OnnxEngine(self._package.graph, threads=self._threads)
        return PackageEngine(made, "int" if self._compiled else "onnx", self._package.digest)


class PackageEngine:
    """Runs an integer graph on a caller's arrays.

    Args:
        engine: that computes.
        name: of the engine.
        digest: of the package; its beginning goes with each answer.
    """

    def __init__(self, engine: IntegerEngine, name: Literal["int", "onnx"], digest: str) -> None:
        self._engine = engine
        parameters = {"package": digest[:12]}
        self.interface = Interface(_specs(engine.inputs), _specs(engine.outputs), _PLATFORMS[name], parameters)

    def run(self, inputs: Arrays) -> Arrays:
        """The outputs for the inputs."""
        return self._engine(inputs)


def _specs(ports: Iterable[ModelPort]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(port.name, np.dtype(port.dtype), (ANY, *port.shape)) for port in ports)
