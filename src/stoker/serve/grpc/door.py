# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
"""The protocol over gRPC: a request becomes that of HTTP with binary tensors, so that one set of rules checks both."""

from __future__ import annotations

import asyncio
import hmac
import math
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any

import grpc
import grpc.aio
import msgspec
import numpy as np
from google.protobuf.message import DecodeError

from stoker.serve.admission import RequestAdmission, refuse_late
from stoker.serve.grpc.measuring import MeasuredRequest, measured
from stoker.serve.grpc.schema import SERVICE, message_class
from stoker.serve.http.door import ClientBounds, OpenModel
from stoker.serve.http.headers import priority_of
from stoker.serve.models.awaited import infer
from stoker.serve.models.pending import Answering, Outputs
from stoker.serve.protocol import answers
from stoker.serve.protocol.datatypes import dtype_of, name_of
from stoker.serve.protocol.requests import TRITONS, InferRequest
from stoker.serve.refusals import RequestRefused, malformed

_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT, 401: grpc.StatusCode.UNAUTHENTICATED, 404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED, 500: grpc.StatusCode.INTERNAL, 503: grpc.StatusCode.UNAVAILABLE,
}  # fmt: skip
_CONTENTS = {
    "b1": "bool_contents", "f4": "fp32_contents", "f8": "fp64_contents", "i8": "int64_contents",
    "u8": "uint64_contents", "i": "int_contents", "u": "uint_contents",
}  # fmt: skip
"""Field with the numbers of a type, where a client does not send raw bytes: by kind and size, or by kind."""
_FACTS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
"""Field with a fact about an answer."""
_COPIES = 2
"""The library keeps the message of a request until it is answered, and its numbers are copied for the engines."""
_NUMBER_BYTES = 24
"""That a number which is not sent raw takes more: in the message that is read, as an array and as bytes."""


class GrpcDoor:
    """The service over gRPC.

    Args:
        models: by name.
        bounds: on what clients may send.
        version: of stoker.
        is_ready: whether the service takes requests.
        admission: that of HTTP: all requests have one bound.
    """

    def __init__(
        self, models: Mapping[str, OpenModel], bounds: ClientBounds, version: str, is_ready: Callable[[], bool],
        admission: RequestAdmission,
    ) -> None:  # fmt: skip
        self._models = models
        self._bounds = bounds
        self._version = version
        self._is_ready = is_ready
        self._admission = admission
        self._server: Any = None

    async def start(self, address: str) -> int:
        """Listens; the port that it was given. Raises ``OSError`` for an address that is taken."""
        most = self._bounds.max_body_bytes
        # One port, one service: without this a second one would share it silently.
        alone = ("grpc.so_reuseport", 0)
        options = [("grpc.max_receive_message_length", most), ("grpc.max_send_message_length", -1), alone]
        self._server = grpc.aio.server(options=options)
        calls: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "ServerLive": self._live, "ServerReady": self._ready, "ServerMetadata": self._metadata,
            "ModelReady": self._model_ready, "ModelMetadata": self._model_metadata,
        }  # fmt: skip
        handlers = {name: self._handler(name, call) for name, call in calls.items()}
        handlers["ModelInfer"] = grpc.unary_unary_rpc_method_handler(self.infer, None, None)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(str(error)) from None
        await self._server.start()
        return port

    async def stop(self, drain_s: float) -> None:
        """Answers what has arrived, for a time at most."""
        if self._server is not None:
            await self._server.stop(drain_s)

    def _handler(self, name: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
        async def answered(request: Any, context: Any) -> Any:
            try:
                self._authenticate(context)
                return await call(request)
            except RequestRefused as refusal:
                await context.abort(_STATUS[refusal.status], str(refusal))

        return grpc.unary_unary_rpc_method_handler(
            answered, message_class(f"{name}Request").FromString, message_class(f"{name}Response").SerializeToString
        )

    def _authenticate(self, context: Any) -> None:
        token = self._bounds.token
        if token is None:
            return
        if not hmac.compare_digest(_metadata(context, "authorization"), b"Bearer " + token):
            raise RequestRefused(401, "`authorization` must be `Bearer` and the token of the service")

    async def _live(self, _: Any) -> Any:
        return message_class("ServerLiveResponse")(live=True)

    async def _ready(self, _: Any) -> Any:
        return message_class("ServerReadyResponse")(ready=self._is_ready())

    async def _metadata(self, _: Any) -> Any:
        return message_class("ServerMetadataResponse")(name="stoker", version=self._version)

    async def _model_ready(self, request: Any) -> Any:
        opened = self._found(request.name)
        ready = self._is_ready() and opened.model.asked(request.version).pool.num_ready > 0
        return message_class("ModelReadyResponse")(ready=ready)

    async def _model_metadata(self, request: Any) -> Any:
        model = self._found(request.name).model
        interface = model.asked(request.version).interface
        found = answers.metadata(model.name, [each.label for each in model.versions], interface)
        found.pop("parameters", None)
        return message_class("ModelMetadataResponse")(**found)

    def _found(self, name: str) -> OpenModel:
        opened = self._models.get(name)
        if opened is None:
            raise RequestRefused(404, f"`{name[:80]}` must be one of {', '.join(self._models)}")
        return opened

    async def infer(self, raw: bytes, context: Any) -> bytes:
        """The answer to an inference, as bytes; refusals abort the call.

        Args:
            raw: the request, not read before it is known that there is room for it.
            context: of gRPC.
        """
        arrived_s = monotonic()
        opened: OpenModel | None = None
        held_bytes = 0
        try:
            self._authenticate(context)
            self._admission.begin(_COPIES * len(raw))
            held_bytes = _COPIES * len(raw)
            sizes = measured(raw)
            opened = self._found(sizes.model)
            _refuse_more(sizes, opened)
            self._admission.grow(_NUMBER_BYTES * sizes.numbers, held_bytes)
            held_bytes += _NUMBER_BYTES * sizes.numbers
            request = _request(raw)
            label = request.model_version
            version = opened.model.asked(label)
            priority = priority_of(_metadata(context, "priority"))
            refuse_late(version.policy, priority, arrived_s)
            found = version.parser.parse(*_body(request))
            del request
            seconds = min(self._bounds.slo_s, found.timeout_s or self._bounds.slo_s)
            encode = _encoder(opened.model.name, found)
            answer = await infer(opened.model, found, arrived_s + seconds, priority, encode, label=label)
        except RequestRefused as refusal:
            if opened is not None:
                opened.figures.outcomes[refusal.outcome] += 1
            return await context.abort(_STATUS[refusal.status], str(refusal))
        except asyncio.CancelledError:  # the client has gone
            if opened is not None:
                opened.figures.outcomes["cancelled"] += 1
            raise
        finally:
            self._admission.release(held_bytes)
        opened.figures.answered(monotonic() - arrived_s)
        return answer


def _metadata(context: Any, name: str) -> bytes:
    value = dict(context.invocation_metadata() or ()).get(name, "")
    return value if isinstance(value, bytes) else str(value).encode()


def _refuse_more(found: MeasuredRequest, opened: OpenModel) -> None:
    """Refuses a request with more inputs or outputs than its model has, before messages are made of them."""
    interfaces = [version.interface for version in opened.model.versions]
    for name, given, most in (
        ("inputs", found.inputs, max(len(each.inputs) for each in interfaces)),
        ("outputs", found.outputs, max(len(each.outputs) for each in interfaces)),
    ):
        if given > most:
            raise malformed(f"`{name}` must be those of `{opened.model.name}`, at most {most}, got {given}")


def _request(raw: bytes) -> Any:
    try:
        return message_class("ModelInferRequest").FromString(raw)
    except DecodeError as error:
        raise malformed(f"`ModelInferRequest` must be a message of the protocol: {str(error)[:200]}") from None


def _body(request: Any) -> tuple[bytes, int]:
    """The request as HTTP has it: JSON of so many bytes, then tensors."""
    raw: list[bytes] = list(request.raw_input_contents)
    if raw and len(raw) != len(request.inputs):
        raise malformed(f"`raw_input_contents` must be one for each of {len(request.inputs)} inputs, got {len(raw)}")
    tails = raw or [b"" if _tritons(each.parameters) else _numbers(each) for each in request.inputs]
    inputs = [
        {
            "name": each.name, "datatype": each.datatype, "shape": list(each.shape),
            "parameters": {"binary_data_size": len(tail)} | _tritons(each.parameters),
        }
        for each, tail in zip(request.inputs, tails, strict=True)
    ]  # fmt: skip
    parameters: dict[str, object] = {}
    if "timeout" in request.parameters:
        choice = request.parameters["timeout"]
        parameters["timeout"] = getattr(choice, choice.WhichOneof("parameter_choice") or "int64_param")
    outputs = [{"name": each.name, "parameters": _tritons(each.parameters)} for each in request.outputs]
    head = msgspec.json.encode({"id": request.id, "inputs": inputs, "outputs": outputs, "parameters": parameters})
    return b"".join((head, *tails)), len(head)


def _tritons(parameters: Any) -> dict[str, object]:
    """Those of a tensor's parameters that its parser refuses."""
    return {name: True for name in TRITONS if name in parameters}


def _numbers(given: Any) -> bytes:
    dtype = dtype_of(given.datatype, given.name[:80])
    field = _CONTENTS.get(f"{dtype.kind}{dtype.itemsize}") or _CONTENTS.get(dtype.kind)
    if field is None:
        raise malformed(f"`{given.name[:80]}` must be in `raw_input_contents`, as {given.datatype} has no field")
    numbers = getattr(given.contents, field)
    if len(numbers) != math.prod(given.shape):
        raise malformed(f"`contents` of `{given.name[:80]}` must have as many numbers as its shape, got {len(numbers)}")
    try:
        return np.fromiter(numbers, dtype, len(numbers)).tobytes()  # no list of objects in between
    except OverflowError:
        raise malformed(f"`contents` of `{given.name[:80]}` must be in the range of {given.datatype}") from None


def _encoder(model: str, request: InferRequest) -> Callable[[Answering, Outputs], bytes]:
    def encode(version: Answering, outputs: Outputs) -> bytes:
        made = message_class("ModelInferResponse")(model_name=model, model_version=version.label, id=request.id)
        for name, _ in request.outputs:
            array = outputs[name]
            made.outputs.add(name=name, datatype=name_of(array.dtype), shape=array.shape)
            made.raw_output_contents.append(array.tobytes())
        for name, fact in version.interface.parameters.items():
            made.parameters[name].CopyFrom(message_class("InferParameter")(**{_FACTS[type(fact)]: fact}))
        return made.SerializeToString()

    return encode
