"""What requests hold is bounded for all of them together, however they come; and none begins once the service ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any

import grpc
import numpy as np
import pytest

from stoker.serve.admission import HeldBody, RequestAdmission
from stoker.serve.figures import ModelFigures
from stoker.serve.grpc.door import GrpcDoor
from stoker.serve.grpc.measuring import measured
from stoker.serve.grpc.schema import message_class
from stoker.serve.http.door import ClientBounds, InferenceDoor, OpenModel
from stoker.serve.models.served_model import ServedModel
from stoker.serve.refusals import RequestRefused
from tests.serve.played import PlayedEngine, PlayedModel, played_version, turns

BOUNDS = ClientBounds(slo_s=math.inf, max_body_bytes=600, max_held_bytes=1000)
BODY = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1.0]}]}'
PATH = "/v2/models/m/infer"


class Doors:
    """Both doors to one model, whose engine the test plays."""

    async def __aenter__(self) -> Doors:
        self._model = PlayedModel()
        version = played_version("1", self._model)

        async def make(source: str, label: str) -> Any:
            starting = asyncio.ensure_future(version.start())
            self.engine: PlayedEngine = await self._model.engine(1e-3)
            await starting
            return version

        self.version = version
        self._served = ServedModel("m", make, lambda text: None)
        await self._served.start("old")
        models = {"m": OpenModel(self._served, ModelFigures())}
        self.http = InferenceDoor(models, BOUNDS, self._rest)
        self.grpc = GrpcDoor(models, BOUNDS, "0", lambda: True, self.http.admission)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._served.abort()
        self.engine.channel.close()
        self._model.close()

    @property
    def held_bytes(self) -> int:
        return self.http.admission.held_bytes

    async def _rest(self, scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("an inference is meant")


class HttpClient:
    """One request whose body comes in parts, without a length unless headers tell it."""

    def __init__(self, doors: Doors, *headers: tuple[bytes, bytes], path: str = PATH) -> None:
        self._parts: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self.status = 0
        scope = {"type": "http", "method": "POST", "path": path, "headers": list(headers)}
        self.task = asyncio.ensure_future(doors.http(scope, self._parts.get, self._send))

    async def sends(self, part: bytes, more: bool = True) -> None:
        self._parts.put_nowait({"type": "http.request", "body": part, "more_body": more})
        await turns()

    async def leaves(self) -> None:
        self._parts.put_nowait({"type": "http.disconnect"})
        await turns()

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.status = message.get("status", self.status)


class GrpcContext:
    """What the library tells a call, and how that ended."""

    def __init__(self, **metadata: str) -> None:
        self._metadata = metadata
        self.code: grpc.StatusCode | None = None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return tuple(self._metadata.items())

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        self.code = code
        raise asyncio.CancelledError(text)


def grpc_request(numbers: int = 1, **fields: Any) -> bytes:
    given = message_class("InferInputTensor")(name="x", datatype="FP32", shape=[numbers])
    raw = [np.ones(numbers, np.float32).tobytes()]
    asked = message_class("ModelInferRequest")(model_name="m", inputs=[given], raw_input_contents=raw, **fields)
    return asked.SerializeToString()


def played(test: Callable[[Doors], Coroutine[Any, Any, None]]) -> None:
    """Runs a test with both doors."""

    async def run() -> None:
        async with Doors() as doors:
            await test(doors)
            assert doors.held_bytes == 0

    asyncio.run(asyncio.wait_for(run(), 30.0))


def test_a_body_without_a_length_is_held_as_it_comes() -> None:
    async def chunked(doors: Doors) -> None:
        first, second, third = (HttpClient(doors) for _ in range(3))
        for number in range(1, 6):
            await first.sends(bytes(100))
            assert doors.held_bytes == 100 * number
        await second.sends(bytes(450))
        await third.sends(bytes(100))
        assert (first.status, second.status, third.status) == (0, 0, 503)
        assert doors.held_bytes == 950
        await first.sends(bytes(60))
        assert first.status == 503
        await second.leaves()
        assert second.task.done()

    played(chunked)


def test_one_body_without_a_length_has_its_bound_too() -> None:
    async def long(doors: Doors) -> None:
        client = HttpClient(doors)
        await client.sends(bytes(601))
        assert client.status == 413

    played(long)


def test_a_body_with_a_length_is_held_once() -> None:
    async def announced(doors: Doors) -> None:
        client = HttpClient(doors, (b"content-length", b"%d" % len(BODY)))
        await client.sends(BODY[:10])
        assert doors.held_bytes == len(BODY)
        await client.sends(BODY[10:], more=False)
        assert doors.held_bytes == len(BODY)
        assert await doors.engine.samples() == [1]
        doors.engine.done()
        await turns()
        assert client.status == 200

    played(announced)


def test_requests_over_grpc_have_the_same_bound() -> None:
    async def over_grpc(doors: Doors) -> None:
        raw = grpc_request(60)
        asked = asyncio.ensure_future(doors.grpc.infer(raw, GrpcContext()))
        assert await doors.engine.samples() == [60]
        assert doors.held_bytes == 2 * len(raw) + 24  # a number of its shape is not raw
        refused, client = GrpcContext(), HttpClient(doors)
        with pytest.raises(asyncio.CancelledError):
            await doors.grpc.infer(raw, refused)
        await client.sends(bytes(599))
        assert (refused.code, client.status) == (grpc.StatusCode.UNAVAILABLE, 503)
        doors.engine.done()
        assert b"FP32" in await asked

    played(over_grpc)


def test_numbers_over_grpc_are_counted_as_they_will_be_held() -> None:
    """Small ones take a byte each on their way."""

    async def small(doors: Doors) -> None:
        contents = message_class("InferTensorContents")(int64_contents=[1] * 40)
        given = message_class("InferInputTensor")(name="x", datatype="INT64", shape=[40], contents=contents)
        raw = message_class("ModelInferRequest")(model_name="m", inputs=[given]).SerializeToString()
        assert measured(raw) == ("m", 1, 0, 41)
        context = GrpcContext()
        with pytest.raises(asyncio.CancelledError):
            await doors.grpc.infer(raw, context)
        assert context.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        doubles = message_class("InferTensorContents")(fp64_contents=[1.0] * 5, bool_contents=[True], fp32_contents=[1])
        given = message_class("InferInputTensor")(contents=doubles)
        assert measured(message_class("ModelInferRequest")(inputs=[given]).SerializeToString()).numbers == 7

    played(small)


def test_messages_over_grpc_are_counted_before_they_are_made() -> None:
    """Empty ones take two bytes each on their way, and ninety then."""

    async def empty(doors: Doors) -> None:
        for raw in (b"\x0a\x01m" + b"\x2a\x00" * 2, b"\x0a\x01m" + b"\x32\x00" * 2):
            context = GrpcContext()
            with pytest.raises(asyncio.CancelledError, match="those of `m`, at most 1, got 2"):
                await doors.grpc.infer(raw, context)
            assert context.code is grpc.StatusCode.INVALID_ARGUMENT

    played(empty)
    entries = b"\x22\x00" * 20_000
    for raw in (entries, b"\x2a\xc0\xb8\x02" + entries, b"\x32\xc0\xb8\x02" + entries):
        with pytest.raises(RequestRefused, match="at most 16384 fields"):
            measured(raw)
    with pytest.raises(RequestRefused, match="must be a message"):
        measured(b"\x2a\x05\x00")


def test_bytes_that_are_no_message_are_refused() -> None:
    async def damaged(doors: Doors) -> None:
        context = GrpcContext()
        with pytest.raises(asyncio.CancelledError):
            await doors.grpc.infer(b"\xff\xff", context)
        assert context.code is grpc.StatusCode.INVALID_ARGUMENT

    played(damaged)


def test_what_is_urgent_goes_first_over_grpc() -> None:
    """By metadata, as by the header of that name over HTTP."""

    async def urgent(doors: Doors) -> None:
        calls = [asyncio.ensure_future(doors.grpc.infer(grpc_request(4), GrpcContext())) for _ in range(3)]
        await turns()
        calls.append(asyncio.ensure_future(doors.grpc.infer(grpc_request(4), GrpcContext(priority="u=0"))))
        assert await doors.engine.samples() == [4, 4]
        doors.engine.done()
        assert await doors.engine.samples() == [4, 4]
        doors.engine.done()
        doors.engine.done()
        await turns()
        assert [call.done() for call in calls] == [True, True, False, True]
        assert await doors.engine.samples() == [4]
        doors.engine.done()
        await calls[2]

    played(urgent)


def test_a_version_is_asked_by_its_path_and_field() -> None:
    async def named(doors: Doors) -> None:
        right = HttpClient(doors, path="/v2/models/m/versions/1/infer")
        wrong = HttpClient(doors, path="/v2/models/m/versions/2/infer")
        for client in (right, wrong):
            await client.sends(BODY, more=False)
        call = asyncio.ensure_future(doors.grpc.infer(grpc_request(model_version="1"), GrpcContext()))
        context = GrpcContext()
        with pytest.raises(asyncio.CancelledError):
            await doors.grpc.infer(grpc_request(model_version="2"), context)
        while await doors.engine.samples():
            doors.engine.done()
        assert (right.status, wrong.status, context.code) == (200, 404, grpc.StatusCode.NOT_FOUND)
        assert b"FP32" in await call

    played(named)


def test_nothing_begins_once_the_service_ends_and_what_has_begun_goes_on() -> None:
    async def ending(doors: Doors) -> None:
        begun, waiting = HttpClient(doors), asyncio.ensure_future(doors.grpc.infer(grpc_request(), GrpcContext()))
        await begun.sends(BODY[:10])
        doors.http.admission.close()
        late, context = HttpClient(doors), GrpcContext()
        await late.sends(BODY, more=False)
        with pytest.raises(asyncio.CancelledError):
            await doors.grpc.infer(grpc_request(), context)
        assert (late.status, context.code) == (503, grpc.StatusCode.UNAVAILABLE)
        await begun.sends(BODY[10:], more=False)
        while await doors.engine.samples():
            doors.engine.done()
        assert begun.status == 200
        assert b"FP32" in await waiting

    played(ending)


def test_a_request_that_is_refused_holds_nothing() -> None:
    admission = RequestAdmission(100, 150)
    admission.begin(100)
    for refused in (lambda: admission.begin(51), lambda: admission.grow(51)):
        with pytest.raises(RequestRefused, match="requests hold 100 of 150 bytes, and this needs 51"):
            refused()
    assert admission.held_bytes == 100


def test_another_try_is_not_worth_it_for_what_fits_never() -> None:
    admission = RequestAdmission(1000, 150)
    admission.begin(100)
    for refused in (
        lambda: admission.begin(151), lambda: admission.grow(51, 100), lambda: HeldBody(admission, 0).arrived(151)
    ):  # fmt: skip
        with pytest.raises(RequestRefused, match="must need at most 150 bytes to be answered, got 151") as caught:
            refused()
        assert (caught.value.status, caught.value.retry_after_s) == (413, None)
