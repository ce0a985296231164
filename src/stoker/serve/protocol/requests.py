"""Bytes of an inference request, as arrays that fit a model; any bytes give arrays or a refusal, nothing else.

Source: the Open Inference Protocol, "Inference Request JSON Object", and its extension for binary tensor data.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from stoker.serve.engine import Interface, TensorSpec
from stoker.serve.protocol.datatypes import dtype_of, name_of
from stoker.serve.refusals import RequestRefused, malformed

Parameters = dict[str, str | int | float | bool | None]
"""The protocol leaves their names to servers."""

_MAX_AXES = 16
_MAX_ID = 256
_BINARY = "binary_data_size"


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters = {}
    data: msgspec.Raw = msgspec.Raw()


class RequestedOutput(msgspec.Struct):
    """An output that the client asks for, and how."""

    name: str
    parameters: Parameters = {}


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    parameters: Parameters = {}
    outputs: list[RequestedOutput] = []


class InferRequest(msgspec.Struct, frozen=True):
    """A request that fits its model.

    Attributes:
        id: that the client chose; empty for none.
        inputs: in the order of the model's interface; views of the body where it was binary.
        samples: size of the first axis; 1 for a model without a batch.
        outputs: names and whether each goes out as bytes, in the order asked for.
        timeout_s: that the client sets; None for the service's own.
    """

    id: str
    inputs: list[npt.NDArray[np.generic]]
    samples: int
    outputs: list[tuple[str, bool]]
    timeout_s: float | None


_decoder = msgspec.json.Decoder(_Request)
_numbers: dict[str, msgspec.json.Decoder[Any]] = {
    "f": msgspec.json.Decoder(list[float]),
    "i": msgspec.json.Decoder(list[int]),
    "u": msgspec.json.Decoder(list[int]),
    "b": msgspec.json.Decoder(list[bool]),
}


def parse(body: bytes | memoryview, header_bytes: int | None, interface: Interface, max_samples: int) -> InferRequest:
    """The request in a body.

    Args:
        body: of HTTP, or of another protocol that carries the same.
        header_bytes: length of its JSON, after which binary tensors follow; None where all of it is JSON.
        interface: of the model.
        max_samples: that one request may have.

    Raises:
        RequestRefused: the body breaks a rule of the protocol or of the model.
    """
    if header_bytes is not None and not 0 <= header_bytes <= len(body):
        raise malformed(
            f"`Inference-Header-Content-Length` must be at most the body's {len(body)} bytes, got {header_bytes}"
        )
    text = body if header_bytes is None else memoryview(body)[:header_bytes]
    try:
        request = _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"`body` must be an inference request as JSON: {str(error)[:200]}") from None
    if len(request.id) > _MAX_ID:
        raise malformed(f"`id` must have at most {_MAX_ID} characters, got {len(request.id)}")
    inputs = _inputs(request, memoryview(body)[len(text) :], interface)
    return InferRequest(
        request.id, inputs, _samples(inputs, interface, max_samples), _outputs(request, interface), _timeout_s(request)
    )


def _inputs(request: _Request, rest: memoryview, interface: Interface) -> list[npt.NDArray[np.generic]]:
    found: dict[str, npt.NDArray[np.generic]] = {}
    specs = {spec.name: spec for spec in interface.inputs}
    for each in request.inputs:
        spec = specs.get(each.name)
        if spec is None or each.name in found:
            known = ", ".join(specs)
            raise malformed(f"`inputs` must be {known}, each once, got `{each.name[:80]}`")
        found[each.name], rest = _tensor(each, spec, rest)
    if len(found) < len(specs):
        lacking = ", ".join(name for name in specs if name not in found)
        raise malformed(f"`inputs` must be {', '.join(specs)}; {lacking} is missing")
    if len(rest):
        raise malformed(f"`{_BINARY}` of the inputs must sum to the bytes after the JSON; {len(rest)} are left")
    return [found[spec.name] for spec in interface.inputs]


def _tensor(given: _Input, spec: TensorSpec, rest: memoryview) -> tuple[npt.NDArray[np.generic], memoryview]:
    dtype = dtype_of(given.datatype, spec.name)
    if dtype != spec.dtype:
        raise malformed(f"`datatype` of `{spec.name}` must be {name_of(spec.dtype)}, got {given.datatype}")
    shape = tuple(given.shape)
    if len(shape) > _MAX_AXES or not spec.fits(shape):
        raise malformed(f"`shape` of `{spec.name}` must be {list(spec.shape)} (-1: any), got {given.shape[:_MAX_AXES]}")
    count = math.prod(shape)
    size = given.parameters.get(_BINARY)
    if size is None:
        return _from_json(given, spec, count).reshape(shape), rest
    expected = count * dtype.itemsize
    if size is True or size != expected or expected > len(rest):
        raise malformed(
            f"`{_BINARY}` of `{spec.name}` must be {expected} bytes that follow the JSON, got {size}, {len(rest)} left"
        )
    if dtype.kind == "b" and np.frombuffer(rest[:expected], np.uint8).max(initial=0) > 1:
        raise malformed(f"`{spec.name}` must hold only 0 and 1 as its bytes")
    return np.frombuffer(rest[:expected], dtype).reshape(shape), rest[expected:]


def _from_json(given: _Input, spec: TensorSpec, count: int) -> npt.NDArray[np.generic]:
    raw = bytes(given.data)
    if not raw:
        raise malformed(f"`data` of `{spec.name}` must be given, or `{_BINARY}` among its parameters")
    try:
        values = _numbers[spec.dtype.kind].decode(raw)
        array = np.array(values, spec.dtype)
    except (msgspec.MsgspecError, OverflowError):
        array = _nested(raw, spec)
    if array.size != count:
        raise malformed(f"`data` of `{spec.name}` must have {count} numbers for shape {given.shape}, got {array.size}")
    return array


def _nested(raw: bytes, spec: TensorSpec) -> npt.NDArray[np.generic]:
    """Data as nested lists, which the protocol allows as well."""
    problem = f"`data` of `{spec.name}` must be numbers of {name_of(spec.dtype)}, flat or nested by the shape"
    try:
        array = np.array(msgspec.json.decode(raw))
        if array.dtype.kind not in {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[spec.dtype.kind]:
            raise malformed(f"{problem}, got {array.dtype}")
        cast = array.astype(spec.dtype)
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise malformed(f"{problem}: {str(error)[:120]}") from None
    if spec.dtype.kind in "iu" and not np.array_equal(cast, array):
        raise malformed(f"{problem}, got one out of its range")
    return cast.reshape(-1)


def _samples(inputs: list[npt.NDArray[np.generic]], interface: Interface, max_samples: int) -> int:
    if not interface.is_batched:
        return 1
    samples = inputs[0].shape[0]
    for array in inputs:
        if array.shape[0] != samples:
            sizes = sorted({array.shape[0] for array in inputs})
            raise malformed(f"`shape` of all inputs must begin with the same number of samples, got {sizes}")
    if samples > max_samples:
        raise malformed(f"`shape` must begin with at most {max_samples} samples, got {samples}")
    return samples


def _outputs(request: _Request, interface: Interface) -> list[tuple[str, bool]]:
    binary = request.parameters.get("binary_data_output") is True
    if not request.outputs:
        return [(spec.name, binary) for spec in interface.outputs]
    known = [spec.name for spec in interface.outputs]
    found: dict[str, bool] = {}
    for each in request.outputs:
        if each.name not in known or each.name in found:
            raise malformed(f"`outputs` must be some of {', '.join(known)}, each once, got `{each.name[:80]}`")
        found[each.name] = each.parameters.get("binary_data", binary) is True
    return list(found.items())


def _timeout_s(request: _Request) -> float | None:
    """Triton's parameter, in microseconds."""
    timeout = request.parameters.get("timeout")
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout <= 0:
        raise malformed(f"`timeout` must be a positive whole number of microseconds, got {timeout!r}")
    return timeout * 1e-6


__all__ = ["InferRequest", "Parameters", "RequestRefused", "RequestedOutput", "parse"]
