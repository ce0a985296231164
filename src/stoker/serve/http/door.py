"""Inference over HTTP, as a raw ASGI callable, and the rules that all inference passes.

A request that cannot be answered in time is refused before its body is parsed, and before it is read where it comes in
parts. Most come whole: ``whole_requests`` answers those without a task.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from stoker.serve.admission import HeldBody, RequestAdmission
from stoker.serve.figures import ModelFigures
from stoker.serve.http.headers import Headers, RequestHeaders, answer_headers, read_headers, refusal_answer
from stoker.serve.models.awaited import infer
from stoker.serve.models.pending import Answering, Outputs
from stoker.serve.models.served_model import ServedModel
from stoker.serve.models.version import ModelVersion
from stoker.serve.protocol import answers
from stoker.serve.protocol.requests import InferRequest
from stoker.serve.refusals import RequestRefused

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_LOOK_S = 0.5
"""Between two looks at all connections, of which there may be thousands."""
_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")


@dataclass(frozen=True, kw_only=True)
class ClientBounds:
    """Bounds on what clients may send.

    Attributes:
        slo_s: time from arrival to answer; infinite for none.
        max_body_bytes: of one request.
        max_held_bytes: of all requests that are being read or answered.
        body_s: time for a body to arrive, and for headers.
        token: that clients must send; None where only this machine connects.
    """

    slo_s: float
    max_body_bytes: int = 64 << 20
    max_held_bytes: int = 1 << 30
    body_s: float = 10.0
    token: bytes | None = None


class WatchedConnection(Protocol):
    """A connection whose client may be slow to say what it wants."""

    def sweep(self, now_s: float) -> None:
        """Ends it, if headers take too long."""
        ...


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
        self._by_url = {path.encode(): opened for path, opened in self._by_path.items()}
        self._settings = settings
        self._rest = rest
        self.admission = RequestAdmission(settings.max_body_bytes, settings.max_held_bytes)
        """What all requests hold; requests by other protocols are admitted there as well."""
        self._reading: dict[asyncio.Task[Any], float] = {}
        """Tasks that wait for a body, and since when."""
        self._late: set[asyncio.Task[Any]] = set()
        self._looked_s = 0.0
        self.connections: set[WatchedConnection] = set()
        """Those that are open."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1003})
            return
        path = scope["path"]
        opened, label = self._by_path.get(path), ""
        headers: Headers = scope["headers"]
        try:
            self.authenticate(headers)
            if opened is None:
                found = self._named(path)
                if found is None:
                    await self._rest(scope, receive, send)
                    return
                opened, label = found
            if scope["method"] != "POST":
                raise RequestRefused(405, "`method` must be POST for an inference")
        except RequestRefused as refusal:
            await refuse(send, refusal)
            return
        await self._infer(opened, label, headers, receive, send)

    @property
    def header_s(self) -> float:
        """Time for the headers of a request to arrive: that of a body."""
        return self._settings.body_s

    def inference(self, url: bytes) -> OpenModel | None:
        """The model whose inference is at a URL, as clients mostly write it; None for any other."""
        return self._by_url.get(url)

    def authenticate(self, headers: Headers) -> None:
        """Raises :class:`RequestRefused` without the token of the service."""
        token = self._settings.token
        if token is None:
            return
        given = next((value for name, value in headers if name == b"authorization"), b"")
        if not hmac.compare_digest(given, b"Bearer " + token):
            raise RequestRefused(401, "`Authorization` must be `Bearer` and the token of the service")

    def parsed(
        self, version: ModelVersion, found: RequestHeaders, body: bytes, arrived_s: float
    ) -> tuple[InferRequest, float]:
        """The request in a body, and its deadline; raises :class:`RequestRefused`."""
        request = version.parser.parse(body, found.json_bytes)
        seconds = self._settings.slo_s
        if request.timeout_s is not None:
            seconds = min(seconds, request.timeout_s)
        return request, arrived_s + seconds

    async def _infer(self, opened: OpenModel, label: str, headers: Headers, receive: Receive, send: Send) -> None:
        arrived_s = monotonic()
        held: HeldBody | None = None
        try:
            found = read_headers(headers)
            policy = opened.model.asked(label).policy
            self.admission.admit(policy, found.priority, found.content_bytes, arrived_s)
            held = HeldBody(self.admission, found.content_bytes)
            body = await self._read(receive, held, arrived_s)
            request, deadline_s = self.parsed(opened.model.asked(label), found, body, arrived_s)
            encode = functools.partial(encoded, opened.model.name, request)
            answer, json_bytes = await infer(opened.model, request, deadline_s, found.priority, encode, label=label)
        except RequestRefused as refusal:
            opened.figures.outcomes[refusal.outcome] += 1
            await refuse(send, refusal)
            return
        except ConnectionResetError:
            opened.figures.outcomes["cancelled"] += 1
            return
        finally:
            if held is not None:
                self.admission.release(held.num_bytes)
        opened.figures.answered(monotonic() - arrived_s)
        await send({"type": "http.response.start", "status": 200, "headers": answer_headers(len(answer), json_bytes)})
        await send({"type": "http.response.body", "body": answer})

    def _named(self, path: str) -> tuple[OpenModel, str] | None:
        """The model and the version that the path of an inference names; None for another path."""
        if (match := _PATH.fullmatch(path)) is None:
            return None
        opened = self._models.get(match[1])
        if opened is None:
            raise RequestRefused(404, f"`{match[1][:80]}` must be one of {', '.join(self._models)}")
        return opened, match[2] or ""

    async def _body(self, receive: Receive, held: HeldBody) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError
            part: bytes = message.get("body", b"")
            parts.append(part)
            size += len(part)
            held.arrived(size)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _read(self, receive: Receive, held: HeldBody, arrived_s: float) -> bytes:
        """The body, unless it takes too long; timers of their own would cost each request more than its parsing."""
        task = asyncio.current_task()
        assert task is not None, "uvicorn runs applications in tasks"
        self._reading[task] = arrived_s
        try:
            return await self._body(receive, held)
        except asyncio.CancelledError:
            if task not in self._late:
                raise
            self._late.discard(task)
            task.uncancel()
            raise RequestRefused(408, f"`body` must arrive within {self._settings.body_s:g} s") from None
        finally:
            del self._reading[task]

    def sweep(self, now_s: float) -> None:
        """Ends the wait for bodies and headers that take too long; called now and then."""
        if now_s - self._looked_s > _LOOK_S:
            self._looked_s = now_s
            for connection in list(self.connections):
                connection.sweep(now_s)
        for task, arrived_s in self._reading.items():
            if now_s - arrived_s > self._settings.body_s and task not in self._late:
                self._late.add(task)
                task.cancel()


def encoded(model: str, request: InferRequest, version: Answering, outputs: Outputs) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON where binary tensors follow."""
    return answers.answer(model, version.label, request, outputs, version.interface.parameters)


async def refuse(send: Send, refusal: RequestRefused) -> None:
    """Sends a refusal."""
    headers, body = refusal_answer(refusal.status, str(refusal), refusal.retry_after_ms)
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
