# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Models in ONNX, run by ONNX Runtime on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stoker.core.errors import ServingError
from stoker.core.extras import require
from stoker.serve.engine import ANY, Arrays, Interface, TensorSpec

_DTYPES = {
    "tensor(float)": "f4", "tensor(double)": "f8", "tensor(float16)": "f2", "tensor(bool)": "?",
    "tensor(int8)": "i1", "tensor(int16)": "i2", "tensor(int32)": "i4", "tensor(int64)": "i8",
    "tensor(uint8)": "u1", "tensor(uint16)": "u2", "tensor(uint32)": "u4", "tensor(uint64)": "u8",
}  # fmt: skip


class OnnxModel:
    """A file that each engine opens by itself: a session has threads, which no fork survives.

    Args:
        path: of the file.
        threads: of an engine.

    Raises:
        MissingExtraError: ONNX Runtime is not installed.
    """

    def __init__(self, path: Path, threads: int) -> None:
        self._runtime: Any = require("onnxruntime", extra="serve")
        self._path = path
        self._threads = threads

    @property
    def in_any_thread(self) -> bool:
        """Whether a session starts no threads."""
        return self._threads == 1

    def engine(self) -> OnnxSessionEngine:
        """An engine of this process."""
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        # Threads that spin for work would take the cores of the service's own process.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return OnnxSessionEngine(
            self._runtime.InferenceSession(str(self._path), options, providers=["CPUExecutionProvider"])
        )


class OnnxSessionEngine:
    """Runs a session.

    Args:
        session: of ONNX Runtime.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        inputs = tuple(_spec(each) for each in session.get_inputs())
        outputs = tuple(_spec(each) for each in session.get_outputs())
        self.interface = Interface(inputs, outputs, "onnxruntime")
        self._names = [spec.name for spec in outputs]

    def run(self, inputs: Arrays) -> Arrays:
        """The outputs for the inputs."""
        return dict(zip(self._names, self._session.run(self._names, dict(inputs)), strict=True))


def _spec(argument: Any) -> TensorSpec:
    code = _DTYPES.get(argument.type)
    if code is None:
        raise ServingError(f"`{argument.name}` must be one of {', '.join(_DTYPES)}, got {argument.type}")
    shape = tuple(size if isinstance(size, int) and size >= 0 else ANY for size in argument.shape)
    return TensorSpec(argument.name, np.dtype(code), shape)
