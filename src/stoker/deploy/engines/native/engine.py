"""The CPU engine: a graph's own C++ program, called through ctypes on the caller's arrays."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.engines.ends import Arrays, accepted
from stoker.deploy.engines.engine import IntegerEngine
from stoker.deploy.engines.native.kept_libraries import library_path
from stoker.deploy.engines.native.source import KERNELS, write_source
from stoker.deploy.ir.graph import IntegerGraph, Integers

_ALIGNED = 64


class CompiledEngine(IntegerEngine):
    """Executes a graph by a compiled program; threads may call it at once.

    Args:
        graph: any; it is checked.
        folder: where compiled libraries are kept; by default in the user's cache.

    Raises:
        ValueError: the graph is not sound.
        RuntimeError: no compiler is there, or it fails.
    """

    name = "c++"

    def __init__(self, graph: IntegerGraph, *, folder: Path | None = None) -> None:
        super().__init__(graph)
        made = write_source(graph)
        text = f"{KERNELS.read_text(encoding='utf-8').replace('#pragma once', '')}\n{made.text}"
        library = ctypes.CDLL(str(library_path(text, folder)))
        self._real: Any = library.stoker_run
        self._whole: Any = library.stoker_integers
        for function in (self._real, self._whole):
            function.restype = None
            function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
        self._constants = made.constants
        self._addresses = _addresses(made.constants)
        self._scratch_bytes = made.scratch_bytes
        self._own = threading.local()
        """Working memory of each thread."""

    def __call__(self, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """As every engine's."""
        found = accepted(self.graph, arrays)
        taken = [found[port.name] for port in self.inputs]
        batch = len(taken[0])
        given = [np.empty((batch, *port.shape), port.dtype) for port in self.outputs]
        self._run(self._real, taken, given, batch)
        return {port.name: array for port, array in zip(self.outputs, given, strict=True)}

    def integers(self, values: Mapping[str, Integers]) -> dict[str, Integers]:
        """As every engine's."""
        taken = [np.ascontiguousarray(values[port.value], np.int32) for port in self.inputs]
        batch = len(taken[0])
        given = [np.empty((batch, *self.graph.value(port).shape), np.int32) for port in self.outputs]
        self._run(self._whole, taken, given, batch)
        return {port.value: array for port, array in zip(self.outputs, given, strict=True)}

    def _run(self, function: Any, taken: Sequence[NDArray[Any]], given: Sequence[NDArray[Any]], batch: int) -> None:
        scratch = getattr(self._own, "scratch", None)
        if scratch is None:
            scratch = self._own.scratch = np.empty(self._scratch_bytes + _ALIGNED, np.uint8)
        start = scratch.ctypes.data
        function(self._addresses, _addresses(taken), _addresses(given), batch, start + (-start) % _ALIGNED)


def _addresses(arrays: Sequence[NDArray[Any]]) -> Any:
    """A C array of where arrays lie; the caller keeps them alive."""
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
