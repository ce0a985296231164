"""Inference over HTTP, as a raw ASGI callable: what each request passes, so it does little else.

A request that cannot be answered in time is refused before its body is read, let alone parsed.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stoker.serve.figures import ModelFigures
from stoker.serve.models.served_model import ServedModel
from stoker.serve.models.version import Encode, ModelVersion
from stoker.serve.protocol import answers
from stoker.serve.protocol.requests import InferRequest, parse
from stoker.serve.refusals import RequestRefused, malformed, too_late

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_JSON, _BINARY = (b"content-type", b"application/json"), (b"content-type", b"application/octet-stream")
_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
_PRIORITY = re.compile(rb"(?:^|,)\s*u\s*=\s*([0-7])\s*(?:,|$)")
DEFAULT_PRIORITY = 3
"""As RFC 9218 has it: 0 goes first, 7 last."""


@dataclass(frozen=True, kw_only=True)
class ClientBounds:
    """Bounds on what clients may send.

    Attributes:
        slo_s: time from arrival to answer; infinite for none.
        max_body_bytes: of one request.
        max_held_bytes: of all requests that are being read or answered.
        body_s: time for a body to arrive.
        token: that clients must send; None where only this machine connects.
    """

    slo_s: float
    max_body_bytes: int = 64 << 20
    max_held_bytes: int = 1 << 30
    body_s: float = 10.0
    token: bytes | None = None


@dataclass(frozen=True)
class OpenModel:
    """A model and what is counted of it."""

    model: ServedModel
    figures: ModelFigures


class InferenceDoor:
    """The service as an ASGI application.

    Args:
        models: by name.
        settings: bounds.
        rest: answers all but inference; asked after the token is checked.
    """

    def __init__(self, models: Mapping[str, OpenModel], settings: ClientBounds, rest: Application) -> None:
        self._models = models
        self._by_path = {f"/v2/models/{name}/infer": opened for name, opened in models.items()}
        self._settings = settings
        self._rest = rest
        self._held_bytes = 0
        self._reading: dict[asyncio.Task[Any], float] = {}
        """Tasks that wait for a body, and since when."""
        self._late: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1003})
            return
        path = scope["path"]
        opened = self._by_path.get(path)
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        try:
            self._authenticate(headers)
            if opened is None:
                opened = self._versioned(path)
            if opened is None:
                await self._rest(scope, receive, send)
                return
            if scope["method"] != "POST":
                raise RequestRefused(405, "`method` must be POST for an inference")
        except RequestRefused as refusal:
            await refuse(send, refusal)
            return
        await self._infer(opened, headers, receive, send)

    async def _infer(
        self, opened: OpenModel, headers: Sequence[tuple[bytes, bytes]], receive: Receive, send: Send
    ) -> None:
        loop = asyncio.get_running_loop()
        arrived_s = loop.time()
        held_bytes = 0
        try:
            found = _read_headers(headers)
            self._admit(opened, found, arrived_s)
            held_bytes = found.content_bytes
            self._held_bytes += held_bytes
            body = await self._read(receive, arrived_s)
            request = parse(
                body, found.json_bytes, opened.model.current.interface, opened.model.current.settings.max_samples
            )
            seconds = self._settings.slo_s
            if request.timeout_s is not None:
                seconds = min(seconds, request.timeout_s)
            encoder = _encoder(opened.model.name, request)
            answer = await opened.model.infer(
                request.inputs, request.samples, encoder, arrived_s + seconds, found.priority
            )
        except RequestRefused as refusal:
            opened.figures.outcomes[refusal.outcome] += 1
            await refuse(send, refusal)
            return
        except ConnectionResetError:
            opened.figures.outcomes["cancelled"] += 1
            return
        finally:
            self._held_bytes -= held_bytes
        opened.figures.outcomes["answered"] += 1
        opened.figures.times.add(loop.time() - arrived_s)
        await _send(send, answer)

    def _admit(self, opened: OpenModel, found: _Headers, now_s: float) -> None:
        """Raises for a request that is too large or cannot be answered in time."""
        bounds = self._settings
        if found.content_bytes > bounds.max_body_bytes:
            raise RequestRefused(
                413, f"`body` must have at most {bounds.max_body_bytes} bytes, got {found.content_bytes}"
            )
        if self._held_bytes + found.content_bytes > bounds.max_held_bytes:
            raise too_late(1.0, f"requests of {bounds.max_held_bytes} bytes are being answered")
        retry_s = opened.model.current.policy.refusal_s(now_s, found.priority)
        if retry_s is not None:
            raise too_late(retry_s, "the service has as much to do as it can answer in time")

    def _authenticate(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        token = self._settings.token
        if token is None:
            return
        given = next((value for name, value in headers if name == b"authorization"), b"")
        if not hmac.compare_digest(given, b"Bearer " + token):
            raise RequestRefused(401, "`Authorization` must be `Bearer` and the token of the service")

    def _versioned(self, path: str) -> OpenModel | None:
        """The model of an inference that names its version, or one that is not served; None for another path."""
        if (match := _PATH.fullmatch(path)) is None:
            return None
        opened = self._models.get(match[1])
        if opened is None:
            raise RequestRefused(404, f"`{match[1][:80]}` must be one of {', '.join(self._models)}")
        label = opened.model.current.label
        if match[2] is not None and match[2] != label:
            raise RequestRefused(404, f"`{match[1]}` is served as version {label}, not {match[2][:20]}")
        return opened

    async def _body(self, receive: Receive) -> bytes:
        message = await receive()
        if not message.get("more_body", True):
            return message.get("body", b"")
        parts: list[bytes] = []
        size, most = 0, self._settings.max_body_bytes
        while True:
            if message["type"] == "http.disconnect":
                raise ConnectionResetError
            part: bytes = message.get("body", b"")
            parts.append(part)
            size += len(part)
            if size > most:
                raise RequestRefused(413, f"`body` must have at most {most} bytes, got more")
            if not message.get("more_body", False):
                return b"".join(parts)
            message = await receive()

    async def _read(self, receive: Receive, arrived_s: float) -> bytes:
        """The body, unless it takes too long; timers of their own would cost each request more than its parsing."""
        task = asyncio.current_task()
        assert task is not None, "uvicorn runs applications in tasks"
        self._reading[task] = arrived_s
        try:
            return await self._body(receive)
        except asyncio.CancelledError:
            if task not in self._late:
                raise
            self._late.discard(task)
            task.uncancel()
            raise RequestRefused(408, f"`body` must arrive within {self._settings.body_s:g} s") from None
        finally:
            del self._reading[task]

    def sweep(self, now_s: float) -> None:
        """Ends the wait for bodies that take too long; called now and then."""
        for task, arrived_s in self._reading.items():
            if now_s - arrived_s > self._settings.body_s and task not in self._late:
                self._late.add(task)
                task.cancel()


class _Headers(NamedTuple):
    content_bytes: int
    json_bytes: int | None
    priority: int


def _read_headers(headers: Sequence[tuple[bytes, bytes]]) -> _Headers:
    found = dict(headers)
    content, head = found.get(b"content-length"), found.get(b"inference-header-content-length")
    priority, encoding = found.get(b"priority"), found.get(b"content-encoding")
    if encoding is not None and encoding != b"identity":
        raise RequestRefused(415, f"`Content-Encoding` must be identity, got {encoding[:20].decode('latin-1')!r}")
    match = _PRIORITY.search(priority) if priority is not None else None
    return _Headers(
        0 if content is None else _whole("Content-Length", content),
        None if head is None else _whole("Inference-Header-Content-Length", head),
        DEFAULT_PRIORITY if match is None else int(match[1]),
    )


def _whole(name: str, value: bytes) -> int:
    if not value.isdigit() or len(value) > 15:
        raise malformed(f"`{name}` must be a whole number, got {value[:20].decode('latin-1')!r}")
    return int(value)


def _encoder(model: str, request: InferRequest) -> Callable[[ModelVersion], Encode]:
    def of(version: ModelVersion) -> Encode:
        parameters = version.interface.parameters

        def encode(outputs: Mapping[str, npt.NDArray[np.generic]]) -> tuple[bytes, int | None]:
            return answers.answer(model, version.label, request.id, outputs, request.outputs, parameters)

        return encode

    return of


async def _send(send: Send, answer: tuple[bytes, int | None]) -> None:
    body, json_bytes = answer
    headers = [(b"content-length", b"%d" % len(body)), _JSON]
    if json_bytes is not None:
        headers[1:] = [_BINARY, (b"inference-header-content-length", b"%d" % json_bytes)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, refusal: RequestRefused) -> None:
    """Sends a refusal."""
    body = answers.error(str(refusal))
    headers = [(b"content-length", b"%d" % len(body)), _JSON]
    if refusal.retry_after_s is not None:
        # Whole seconds in the standard's header, so at least 1; ours is exact.
        headers += [
            (b"retry-after", b"%d" % max(1, round(refusal.retry_after_s))),
            (b"stoker-retry-after-ms", b"%d" % max(1, round(refusal.retry_after_s * 1e3))),
        ]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
