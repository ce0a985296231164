"""Inference requests that come whole, answered from the connection itself: no task, no scope, no messages.

Of 28 us of processor time that uvicorn took for a request with a body of 3 KB, without reading and writing it, its
parser of HTTP (httptools) took 2; the rest carries a request through the interface of ASGI. A body that comes in parts,
another path and everything unusual takes that way; both follow the rules of ``door``.
"""

from __future__ import annotations

import asyncio
import functools
from time import monotonic
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from stoker.serve.http.door import InferenceDoor, OpenModel, encoded
from stoker.serve.http.headers import Headers, RequestHeaders, answer_headers, read_headers, refusal_answer
from stoker.serve.models.pending import Answering, Outputs, Pending
from stoker.serve.protocol.requests import InferRequest
from stoker.serve.refusals import RequestRefused, malformed


class InferenceConnection(HttpToolsProtocol):
    """A connection whose whole inferences do not pass ASGI; its application must be an :class:`InferenceDoor`."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:  # fmt: skip
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(config.app, InferenceDoor), "it is served by `serve_until_told`"
        self._door = config.app
        self.parser = _Parser(self)
        self._goes_on = False
        """Whether the parser gets again how the body of a request is framed."""
        self._opened: OpenModel | None = None
        """The model of a request that may come whole, while it comes."""
        self._parts: list[bytes] = []
        self._item: WholeRequest | None = None
        """That has no answer yet."""
        self.cycle = self._direct = _Direct()
        self._ordinary: list[RequestResponseCycle] = []
        """Requests that pass ASGI, of which the last may have no answer yet."""
        self._bound_s: float | None = config.timeout_keep_alive
        """Time for the headers that are to come; None while a request is read or answered, and behind one."""
        self._waits_since_s: float | None = None
        self._known: tuple[list[tuple[bytes, bytes]], RequestHeaders] = ([], read_headers([]))
        """Headers of the last inference: those of the next are mostly the same."""
        self._defaults: tuple[object, bytes] = (None, b"")
        """Headers of all answers, as uvicorn has them for a second, and as bytes."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Is watched from now on."""
        super().connection_made(transport)
        self._door.connections.add(self)

    def sweep(self, now_s: float) -> None:
        """Closes the connection, if headers take too long: one client with many could keep all others out."""
        if self._bound_s is None:
            return
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        elif now_s - self._waits_since_s > self._bound_s:
            self.transport.close()

    def on_message_begin(self) -> None:
        """Leaves the scope of ASGI to requests that need it."""
        if self._goes_on:
            return
        self._bound_s, self._waits_since_s = self._door.header_s, None
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_url(self, url: bytes) -> None:
        """Keeps a part of the path."""
        if not self._goes_on:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keeps a header; what follows a body in parts is none, and says nothing of how it is to be read."""
        if self._bound_s is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Decides how a request is answered."""
        if self._goes_on:
            return
        self._bound_s = None
        opened, parser = self._door.inference(self.url), self.parser
        assert parser is not None, "it calls this"
        if (
            opened is None
            or self.expect_100_continue
            or not self.cycle.response_complete  # sent before the answer to another
            or self.flow.write_paused
            or parser.get_method() != b"POST"
            or not parser.should_keep_alive()
            or parser.should_upgrade()
            or parser.get_http_version() != "1.1"
        ):
            self._to_application()
        else:
            self._opened = opened
            self._parts.clear()

    def _to_application(self) -> None:
        """Begins an ordinary request."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()
        self._ordinary = [each for each in self._ordinary if not each.response_complete]
        if self.cycle is not self._direct:
            self._ordinary.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Keeps a part."""
        if self._opened is None:
            super().on_body(body)
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """Answers a request that has come whole."""
        assert self.parser is not None, "it calls this"
        if self.parser.should_upgrade():
            return  # its body is still to come
        if self._opened is None:
            super().on_message_complete()
            return
        opened, self._opened = self._opened, None
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._direct.begin()
        self.cycle = self._direct
        try:
            self._infer(opened, body)
        except Exception as error:  # the parser would take it for a malformed request
            self.loop.call_exception_handler({"message": "an inference could not be read", "exception": error})
            if self._item is not None:
                self._item.left()
            self.refuse(RequestRefused(500, "the service failed; its own output says how"))

    def data_received(self, data: bytes) -> None:
        """Reads requests; one of which the rest is to come goes on as an ordinary one."""
        super().data_received(data)
        if self._opened is not None:
            self._opened = None
            if not self.transport.is_closing():
                self._to_application()
                for part in self._parts:
                    super().on_body(part)

    def stay(self) -> _Parser:
        """Continues a request that asked for another protocol, as Java's client does for HTTP/2 in its first one.

        Its body was left out, as if what follows were of that protocol.

        Returns:
            Who reads what has come behind its headers.
        """
        framing = [header for header in self.headers if header[0] in (b"content-length", b"transfer-encoding")]
        self.parser = parser = _Parser(self)
        self._goes_on = True
        parser.feed_data(b"POST / HTTP/1.1\r\n" + _lines(framing) + b"\r\n")
        self._goes_on = False
        return parser

    def send_400_response(self, msg: str) -> None:
        """Says that these bytes are no request, in the form of all errors, and closes."""
        self._direct.keep_alive = False
        self.refuse(
            malformed("`request` must be one of HTTP/1.1: the method, path, headers or their lengths are wrong")
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits for an answer any more."""
        self._door.connections.discard(self)
        if self._item is not None:
            self._item.left()
        self.pipeline.clear()
        for cycle in self._ordinary:  # uvicorn tells the last one alone
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def answer(self, body: bytes, json_bytes: int | None) -> None:
        """Sends an answer."""
        self._respond(_answer_start(len(body), json_bytes), body)

    def refuse(self, refusal: RequestRefused) -> None:
        """Sends a refusal."""
        self._respond(*_refusal(refusal.status, str(refusal), refusal.retry_after_ms))

    def _infer(self, opened: OpenModel, body: bytes) -> None:
        arrived_s, door = monotonic(), self._door
        try:
            door.authenticate(self.headers)
        except RequestRefused as refusal:
            self.refuse(refusal)
            return
        held_bytes = 0
        try:
            if self.headers != self._known[0]:
                self._known = self.headers, read_headers(self.headers)
            found = self._known[1]
            version = opened.model.current
            door.admission.admit(version.policy, found.priority, len(body), arrived_s)
            held_bytes = len(body)
            request, deadline_s = door.parsed(version, found, body, arrived_s)
        except RequestRefused as refusal:
            door.admission.release(held_bytes)
            opened.figures.outcomes[refusal.outcome] += 1
            self.refuse(refusal)
            return
        self._item = item = WholeRequest(self, opened, request, deadline_s, found.priority)
        item.arrived_s, item.held_bytes = arrived_s, held_bytes
        opened.model.submit(item)

    def release(self, held_bytes: int) -> None:
        """A request has ended."""
        self._item = None
        self._door.admission.release(held_bytes)

    def _respond(self, start: bytes, body: bytes) -> None:
        headers, defaults = self._defaults
        if headers is not self.server_state.default_headers:
            headers = self.server_state.default_headers
            defaults = _lines(headers)
            self._defaults = headers, defaults
        direct = self._direct
        end = b"\r\n" if direct.keep_alive else b"connection: close\r\n\r\n"
        self.transport.write(b"".join((start, defaults, end, body)))
        direct.response_complete = True
        if not direct.keep_alive:
            self.transport.close()
        self.on_response_complete()


class _Parser(httptools.HttpRequestParser):
    """Reads requests as uvicorn's does, and those that ask for another protocol as if they did not."""

    def __init__(self, connection: InferenceConnection) -> None:
        super().__init__(connection)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's has it
        self._connection = connection

    def feed_data(self, data: Any) -> None:
        parser: _Parser = self
        rest = memoryview(data)
        while (begin := parser._upgrade_at(rest)) is not None:  # many may come at once: no recursion
            parser, rest = self._connection.stay(), rest[begin:]

    def _upgrade_at(self, data: memoryview) -> int | None:
        """Reads up to where another protocol would begin; None if that is nowhere."""
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return upgrade.args[0]
        return None


def _lines(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


@functools.lru_cache(maxsize=256)
def _answer_start(body_bytes: int, json_bytes: int | None) -> bytes:
    """All before the headers that change with time: answers of one model mostly have one length."""
    return STATUS_LINE[200] + _lines(answer_headers(body_bytes, json_bytes))


@functools.lru_cache(maxsize=256)
def _refusal(status: int, message: str, retry_after_ms: int | None) -> tuple[bytes, bytes]:
    """All before those headers, and the body: under overload most refusals are of one kind, some milliseconds apart."""
    headers, body = refusal_answer(status, message, retry_after_ms)
    return STATUS_LINE[status] + _lines(headers), body


class _Direct(RequestResponseCycle):
    """What the connection of uvicorn asks of a request that is being answered; one for all of a connection."""

    def __init__(self) -> None:
        # Without the fields by which ASGI is spoken.
        self.message_event = asyncio.Event()
        self.begin()
        self.response_complete = True

    def begin(self) -> None:
        """A request has come."""
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False


class WholeRequest(Pending):
    """An inference that came whole.

    Args:
        connection: that is answered.
        opened: the model that is asked.
        request: of it.
        deadline_s: by ``time.monotonic``.
        priority: lower goes first.
    """

    __slots__ = ("_connection", "_opened", "arrived_s", "held_bytes")

    def __init__(
        self, connection: InferenceConnection, opened: OpenModel, request: InferRequest, deadline_s: float,
        priority: int,
    ) -> None:  # fmt: skip
        super().__init__(request, deadline_s, priority)
        self._connection = connection
        self._opened = opened
        self.arrived_s = 0.0
        self.held_bytes = 0

    def answer(self, version: Answering, outputs: Outputs) -> None:
        """Sends it."""
        if self.gone:
            return
        body, json_bytes = encoded(self._opened.model.name, self.request, version, outputs)
        self._connection.release(self.held_bytes)
        self._opened.figures.answered(monotonic() - self.arrived_s)
        self._connection.answer(body, json_bytes)

    def refuse(self, refusal: RequestRefused) -> None:
        """Says why there is none."""
        if self.gone:
            return
        self._connection.release(self.held_bytes)
        self._opened.figures.outcomes[refusal.outcome] += 1
        self._connection.refuse(refusal)

    def left(self) -> None:
        """The client has gone."""
        self._connection.release(self.held_bytes)
        self._opened.figures.outcomes["cancelled"] += 1
        self.leave()
