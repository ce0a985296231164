"""Bytes of an inference request, as arrays that fit a model; any bytes give arrays or a refusal, nothing else.

Source: the Open Inference Protocol, "Inference Request JSON Object", and its extension for binary tensor data.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from stoker.serve.engine import Interface, TensorSpec
from stoker.serve.protocol.datatypes import dtype_of, name_of
from stoker.serve.refusals import RequestRefused, malformed

Parameters = dict[str, str | int | float | bool | None]
"""The protocol leaves their names to servers."""

_MAX_AXES = 16
_MOST_OBJECTS = 1024
"""Braces among the inputs of a large JSON: two for each, and those of names."""
_MAX_ID = 256
_BINARY = "binary_data_size"
TRITONS = ("classification", "shared_memory_region")
"""Parameters of tensors that ask for another answer than one without them: who asks must not take it for theirs."""


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
        heads: JSON of answers to requests of the same form, by what they depend on; None for a request of its own form.
    """

    id: str
    inputs: list[npt.NDArray[np.generic]]
    samples: int
    outputs: list[tuple[str, bool]]
    timeout_s: float | None
    heads: dict[object, bytes] | None = None


class _Tensor(NamedTuple):
    """An input as the JSON announces it: numbers there, or as many bytes behind it."""

    shape: tuple[int, ...]
    start: int
    """Place of its bytes behind the JSON."""
    array: npt.NDArray[np.generic] | None
    """What the JSON holds; None where its bytes follow."""


class _Plan(NamedTuple):
    """What the JSON of a request says. Where all tensors follow it, another request with the same JSON has the same."""

    id: str
    tensors: list[_Tensor]
    """In the order of the interface."""
    tail_bytes: int
    samples: int
    outputs: list[tuple[str, bool]]
    timeout_s: float | None
    heads: dict[object, bytes] | None = None


_LARGE_BYTES = 1 << 16
"""From here on it is looked at what a JSON holds before its numbers are read: that takes 100 ns for each in the event
loop, and 26 bytes."""
_MOST_NUMBER_BYTES = 64
"""That a number takes in JSON with all that is around it: 24 by itself, the rest for nested data in deep lines."""

_MOST_OTHER_BYTES = 1 << 20
"""That a large JSON takes without the data of its inputs. Of a key that comes twice the last value counts, but objects
are made of both."""

_MOST_PLANS, _MAX_PLAN_BYTES = 64, 4096
"""Requests of one client mostly differ in their numbers alone: reading their JSON took half of a request's parsing."""


class _Outline(msgspec.Struct):
    """A request as the places of its parts in the text: nothing is made of what they hold."""

    inputs: msgspec.Raw
    id: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()
    outputs: msgspec.Raw = msgspec.Raw()


class _InputOutline(msgspec.Struct):
    name: msgspec.Raw = msgspec.Raw()
    shape: msgspec.Raw = msgspec.Raw()
    datatype: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()
    data: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_Request)
_outline = msgspec.json.Decoder(_Outline)
_input_outlines = msgspec.json.Decoder(list[_InputOutline])
_numbers: dict[str, msgspec.json.Decoder[Any]] = {
    "f": msgspec.json.Decoder(list[float]),
    "i": msgspec.json.Decoder(list[int]),
    "u": msgspec.json.Decoder(list[int]),
    "b": msgspec.json.Decoder(list[bool]),
}


class RequestParser:
    """Reads the requests for one model.

    Args:
        interface: of the model.
        max_samples: that one request may have.
    """

    def __init__(self, interface: Interface, max_samples: int) -> None:
        self._interface = interface
        self._max_samples = max_samples
        self._plans: dict[bytes, _Plan] = {}
        self._ranged = [
            (place, spec, spec.bounds() if spec.highs else None)
            for place, spec in enumerate(interface.inputs)
            if spec.values is not None
        ]
        """Inputs that do not take all numbers of their dtype: their places, and their bounds where places differ."""

    @property
    def num_known(self) -> int:
        """Forms of requests that are kept."""
        return len(self._plans)

    def parse(self, body: bytes, header_bytes: int | None) -> InferRequest:
        """The request in a body.

        Args:
            body: of HTTP, or of another protocol that carries the same.
            header_bytes: length of its JSON, after which binary tensors follow; None where all of it is JSON.

        Raises:
            RequestRefused: the body breaks a rule of the protocol or of the model.
        """
        if header_bytes is None:
            header_bytes = len(body)
            plan = self._planned(body)
        elif 0 <= header_bytes <= len(body):
            head = body[:header_bytes]
            plan = self._plans.get(head) or self._kept(head)
        else:
            raise malformed(
                f"`Inference-Header-Content-Length` must be at most the body's {len(body)} bytes, got {header_bytes}"
            )
        if header_bytes + plan.tail_bytes != len(body):
            raise malformed(
                f"`{_BINARY}` of the inputs must sum to the {len(body) - header_bytes} bytes after the JSON, "
                f"got {plan.tail_bytes}"
            )
        inputs: list[npt.NDArray[np.generic]] = []
        for spec, (shape, start, array) in zip(self._interface.inputs, plan.tensors, strict=True):
            if array is None:
                array = np.ndarray(shape, spec.dtype, body, header_bytes + start)
                if spec.dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
                    raise malformed(f"`{spec.name}` must hold only 0 and 1 as its bytes")
            inputs.append(array)
        for place, spec, bounds in self._ranged:
            if bounds is None:
                _in_range(inputs[place], spec)
            else:
                _in_range_by_place(inputs[place], spec.name, *bounds)
        return InferRequest(plan.id, inputs, plan.samples, plan.outputs, plan.timeout_s, plan.heads)

    def _kept(self, head: bytes) -> _Plan:
        """What a JSON says, kept for the next request with the same."""
        plan = self._planned(head)
        # Whose requests have names will hardly send one twice.
        if not plan.id and len(head) <= _MAX_PLAN_BYTES and all(each.array is None for each in plan.tensors):
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[head] = plan._replace(heads={})
        return plan

    def _planned(self, text: bytes) -> _Plan:
        try:
            if len(text) > _LARGE_BYTES:
                _refuse_large_parts(text)
            request = _decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise malformed(f"`body` must be an inference request as JSON: {str(error)[:200]}") from None
        if len(request.id) > _MAX_ID:
            raise malformed(f"`id` must have at most {_MAX_ID} characters, got {len(request.id)}")
        tensors, tail_bytes = _tensors(request, self._interface)
        samples = _samples(tensors, self._interface, self._max_samples)
        outputs = _outputs(request, self._interface)
        return _Plan(request.id, tensors, tail_bytes, samples, outputs, _timeout_s(request))


def _in_range(array: npt.NDArray[np.generic], spec: TensorSpec) -> None:
    """Refuses what the model would raise for: one client's wrong number is no failure of a model."""
    assert spec.values is not None, "it is asked for inputs with a range"
    low, high = spec.values
    if not array.size:
        return
    for found in (int(array.min()), int(array.max())):
        if not low <= found <= high:
            raise malformed(f"`{spec.name}` must hold numbers from {low} to {high}, got {found}")


def _in_range_by_place(
    array: npt.NDArray[np.generic], name: str, low: npt.NDArray[np.int64], high: npt.NDArray[np.int64]
) -> None:
    """The same where each place of a sample has a range."""
    numbers = array.astype(np.int64, copy=False)
    wrong: npt.NDArray[np.bool_] = (numbers < low) | (numbers > high)
    if wrong.any():
        sample, *place = np.argwhere(wrong)[0].tolist()
        at = ", ".join(map(str, (":", *place)))
        limits, found = (int(low[tuple(place)]), int(high[tuple(place)])), int(numbers[(sample, *place)])
        raise malformed(f"`{name}[{at}]` must hold numbers from {limits[0]} to {limits[1]}, got {found}")


def _tensors(request: _Request, interface: Interface) -> tuple[list[_Tensor], int]:
    """The inputs in the order of the interface, and the bytes that follow the JSON."""
    found: dict[str, _Tensor] = {}
    specs = {spec.name: spec for spec in interface.inputs}
    tail_bytes = 0
    for each in request.inputs:
        spec = specs.get(each.name)
        if spec is None or each.name in found:
            known = ", ".join(specs)
            raise malformed(f"`inputs` must be {known}, each once, got `{each.name[:80]}`")
        found[each.name], size = _tensor(each, spec, tail_bytes)
        tail_bytes += size
    if len(found) < len(specs):
        lacking = ", ".join(name for name in specs if name not in found)
        raise malformed(f"`inputs` must be {', '.join(specs)}; {lacking} is missing")
    return [found[spec.name] for spec in interface.inputs], tail_bytes


def _tensor(given: _Input, spec: TensorSpec, start: int) -> tuple[_Tensor, int]:
    """A tensor and the bytes behind the JSON that it takes."""
    dtype = dtype_of(given.datatype, spec.name)
    if dtype != spec.dtype:
        raise malformed(f"`datatype` of `{spec.name}` must be {name_of(spec.dtype)}, got {given.datatype}")
    shape = tuple(given.shape)
    if len(shape) > _MAX_AXES or not spec.fits(shape):
        raise malformed(f"`shape` of `{spec.name}` must be {list(spec.shape)} (-1: any), got {given.shape[:_MAX_AXES]}")
    count = math.prod(shape)
    _refuse_tritons(given.name, given.parameters)
    size = given.parameters.get(_BINARY)
    if size is None:
        return _Tensor(shape, start, _from_json(given, spec, count).reshape(shape)), 0
    expected = count * dtype.itemsize
    if size is True or size != expected:
        raise malformed(f"`{_BINARY}` of `{spec.name}` must be {expected} bytes, got {size}")
    return _Tensor(shape, start, None), expected


def _from_json(given: _Input, spec: TensorSpec, count: int) -> npt.NDArray[np.generic]:
    raw = bytes(given.data)
    if not raw:
        raise malformed(f"`data` of `{spec.name}` must be given, or `{_BINARY}` among its parameters")
    if len(raw) > _LARGE_BYTES:
        _refuse_other_counts(raw, given, spec, count)
    try:
        values = _numbers[spec.dtype.kind].decode(raw)
        with np.errstate(over="ignore"):
            array = np.array(values, spec.dtype)
    except (msgspec.MsgspecError, OverflowError):
        array = _nested(raw, spec)
    if spec.dtype.kind == "f" and not np.isfinite(array).all():  # JSON has none: they were too large
        raise malformed(f"`data` of `{spec.name}` must be numbers of {name_of(spec.dtype)}, got one out of its range")
    if array.size != count:
        raise malformed(f"`data` of `{spec.name}` must have {count} numbers for shape {given.shape}, got {array.size}")
    return array


def _refuse_large_parts(text: bytes) -> None:
    """Refuses text of which the most is not the data of inputs, before objects are made of it."""

    def check(name: str, part: msgspec.Raw) -> None:
        if (size := len(memoryview(part))) > _LARGE_BYTES:
            raise malformed(f"`{name}` must take at most {_LARGE_BYTES} bytes of the JSON, got {size}")

    found = _outline.decode(text)
    for name in ("id", "parameters", "outputs"):
        check(name, getattr(found, name))
    objects = bytes(found.inputs).count(b"{")
    if objects > _MOST_OBJECTS:
        raise malformed(f"`inputs` must have at most {_MOST_OBJECTS} objects, got {objects}")
    other = len(text)
    for each in _input_outlines.decode(found.inputs):
        for name in ("name", "shape", "datatype", "parameters"):
            check(f"{name} of `inputs`", getattr(each, name))
        other -= len(memoryview(each.data))
    if other > _MOST_OTHER_BYTES:
        raise malformed(
            f"`body` must have at most {_MOST_OTHER_BYTES} bytes around the `data` of its inputs, got {other}"
        )


def _refuse_other_counts(raw: bytes, given: _Input, spec: TensorSpec, count: int) -> None:
    """Refuses data that cannot be so many numbers; flat or nested, commas are between any two of them."""
    commas = raw.count(b",")
    if commas != count - 1:
        raise malformed(
            f"`data` of `{spec.name}` must have {count} numbers for shape {given.shape}, got {commas + 1}"
        )  # fmt: skip
    most = _LARGE_BYTES + _MOST_NUMBER_BYTES * count
    if len(raw) > most:
        raise malformed(f"`data` of `{spec.name}` must take at most {most} bytes for {count} numbers, got {len(raw)}")


def _nested(raw: bytes, spec: TensorSpec) -> npt.NDArray[np.generic]:
    """Data as nested lists, which the protocol allows as well."""
    problem = f"`data` of `{spec.name}` must be numbers of {name_of(spec.dtype)}, flat or nested by the shape"
    try:
        array = np.array(msgspec.json.decode(raw))
        if array.dtype.kind not in {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[spec.dtype.kind]:
            raise malformed(f"{problem}, got {array.dtype}")
        with np.errstate(over="ignore"):
            cast = array.astype(spec.dtype)
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise malformed(f"{problem}: {str(error)[:120]}") from None
    if spec.dtype.kind in "iu" and not np.array_equal(cast, array):
        raise malformed(f"{problem}, got one out of its range")
    return cast.reshape(-1)


def _samples(tensors: list[_Tensor], interface: Interface, max_samples: int) -> int:
    if not interface.is_batched and not interface.alone:
        return 1
    samples = tensors[0].shape[0]
    for each in tensors:
        if each.shape[0] != samples:
            sizes = sorted({each.shape[0] for each in tensors})
            raise malformed(f"`shape` of all inputs must begin with the same number of samples, got {sizes}")
    if samples > max_samples:
        raise malformed(
            f"`shape` must begin with at most {max_samples} samples, got {samples}; ask for the rest in another request"
        )
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
        _refuse_tritons(each.name, each.parameters)
        found[each.name] = each.parameters.get("binary_data", binary) is True
    return list(found.items())


def _refuse_tritons(tensor: str, parameters: Parameters) -> None:
    for name in TRITONS:
        if name in parameters:
            raise malformed(
                f"`parameters` of `{tensor}` must be without `{name}`: of Triton's extensions there is binary data "
                "alone; take scores and tensors as they are"
            )


def _timeout_s(request: _Request) -> float | None:
    """Triton's parameter, in microseconds."""
    timeout = request.parameters.get("timeout")
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout <= 0:
        raise malformed(f"`timeout` must be a positive whole number of microseconds, got {timeout!r}")
    return timeout * 1e-6


__all__ = ["InferRequest", "Parameters", "RequestParser", "RequestRefused", "RequestedOutput"]
