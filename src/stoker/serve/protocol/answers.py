"""Answers of the protocol: of an inference, and about servers and models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from stoker.serve.engine import Interface, TensorSpec
from stoker.serve.protocol.datatypes import name_of
from stoker.serve.protocol.requests import InferRequest, Parameters

EXTENSIONS = ("binary_tensor_data",)

_encode = msgspec.json.Encoder().encode


class _Output(msgspec.Struct, omit_defaults=True):
    name: str
    datatype: str
    shape: Sequence[int]
    parameters: Parameters = {}
    data: list[Any] | None = None


class _Answer(msgspec.Struct, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[_Output]
    id: str = ""
    parameters: Mapping[str, str | int | float | bool] = {}


_MOST_HEADS = 64


def answer(
    model: str, version: str, request: InferRequest, outputs: Mapping[str, npt.NDArray[np.generic]],
    parameters: Mapping[str, str | int | float | bool],
) -> tuple[bytes, int | None]:  # fmt: skip
    """The body of an answer, and the length of its JSON where binary tensors follow.

    Args:
        model: name.
        version: that computed it.
        request: that is answered.
        outputs: by name; copied into the body.
        parameters: of this version's answers.

    Raises:
        ValueError: an output that goes as JSON has a number that JSON lacks (RFC 8259, section 6).
    """
    heads = request.heads
    arrays = [outputs[name] for name, _ in request.outputs]
    tails = [array.tobytes() for array, (_, binary) in zip(arrays, request.outputs, strict=True) if binary]
    if heads is None or len(tails) < len(arrays):
        head = _head(model, version, request, arrays, parameters)
    else:
        key = (version, *[array.shape for array in arrays])
        known = heads.get(key)
        if known is None:
            if len(heads) >= _MOST_HEADS:
                heads.clear()
            known = heads[key] = _head(model, version, request, arrays, parameters)
        head = known
    return (b"".join((head, *tails)), len(head)) if tails else (head, None)


def _head(
    model: str, version: str, request: InferRequest, arrays: Sequence[npt.NDArray[np.generic]],
    parameters: Mapping[str, str | int | float | bool],
) -> bytes:  # fmt: skip
    described: list[_Output] = []
    for array, (name, binary) in zip(arrays, request.outputs, strict=True):
        if binary:
            found = _Output(name, name_of(array.dtype), array.shape, {"binary_data_size": array.nbytes})
        else:
            # `null` would be taken for NaN by Triton's client, an infinite number too; what Triton's server writes is
            # read by few other clients.
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                wrong = array[~np.isfinite(array)][0]
                raise ValueError(f"`{name}` must be finite to go as JSON, got {wrong:g}; ask for it as binary data")
            found = _Output(name, name_of(array.dtype), array.shape, data=array.reshape(-1).tolist())
        described.append(found)
    return _encode(_Answer(model, version, described, request.id, parameters))


def metadata(model: str, versions: Sequence[str], interface: Interface) -> dict[str, Any]:
    """What a model takes and gives."""
    return {
        "name": model, "versions": list(versions), "platform": interface.platform,
        "inputs": [_described(spec) for spec in interface.inputs],
        "outputs": [_described(spec) for spec in interface.outputs],
        **({"parameters": dict(interface.parameters)} if interface.parameters else {}),
    }  # fmt: skip


def _described(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": name_of(spec.dtype), "shape": list(spec.shape)}


def error(message: str) -> bytes:
    """The body of a refusal."""
    return _encode({"error": message})
