"""A web server that speaks enough S3 for reads, and answers wrongly on request."""

from __future__ import annotations

import functools
import hashlib
import http.server
import threading
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

Fault = Callable[["Handler", bytes, int, int], bool]
"""Answers in place of the server, given the object and the range; False lets the server answer."""


class FaultServer(http.server.ThreadingHTTPServer):
    """Serves ``objects`` by path, below any bucket; ``faults`` are used up from the front, one a GET."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reset()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Has no objects, and answers rightly."""
        self.objects: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.gets: list[tuple[str, int, int]] = []
        self.heads = 0
        self.has_etags = True
        self.knows_ranges = True
        self.states_length = True
        self.checks_conditions = True
        self.checks_range_first = False
        self.head_adds = 0
        self.modified = 1_600_000_000.0
        self.is_down = False
        self.on_get: Callable[[], None] | None = None
        self.released = threading.Event()

    @property
    def url(self) -> str:
        """Without a slash at the end."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: clients hang up on wrong answers."""

    def close(self) -> None:
        """Ends it, and whatever it still stalls."""
        self.released.set()
        self.shutdown()
        self.server_close()
        self._thread.join()


class Handler(http.server.BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: FaultServer

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def do_HEAD(self) -> None:
        """Describes an object."""
        self.server.heads += 1
        if self.server.is_down:
            self.answer(503, b"", {})
            return
        data = self.server.objects.get(self.path.partition("?")[0])
        if data is None:
            self.answer(404, b"", {})
        else:
            more = bytes(self.server.head_adds) if self.server.head_adds > 0 else b""
            self.answer(200, (data + more)[: len(data) + self.server.head_adds], self.described(data), body=b"")

    def do_GET(self) -> None:
        """Serves an object, or a range of it."""
        if self.server.is_down:
            self.answer(503, b"<Error><Code>SlowDown</Code></Error>", {})
            return
        data = self.server.objects.get(self.path.partition("?")[0])
        if data is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>", {})
            return
        start, end = self.range(len(data))
        self.server.gets.append((self.path, start, end))
        if self.server.on_get is not None:
            self.server.on_get()
            data = self.server.objects[self.path.partition("?")[0]]
        if self.server.faults and self.server.faults.pop(0)(self, data, start, end):
            return
        wanted = self.headers.get("If-Match")
        is_beyond = start >= len(data)
        if is_beyond and self.server.checks_range_first:
            self.answer(416, b"<Error><Code>InvalidRange</Code></Error>", {})
        elif wanted and self.server.checks_conditions and wanted.strip('"') != etag(data).strip('"'):
            self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>", {})
        elif is_beyond:
            self.answer(416, b"<Error><Code>InvalidRange</Code></Error>", {})
        elif not self.server.knows_ranges or "Range" not in self.headers:
            self.answer(200, data, self.described(data))
        else:
            self.answer(206, data[start:end], self.ranged(data, start, end))

    def range(self, size: int) -> tuple[int, int]:
        """First byte that is asked for, and the byte after the last."""
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        return int(first), min(size, int(last) + 1) if last else size

    def described(self, data: bytes) -> dict[str, str]:
        """Headers that say which version this is."""
        headers = {"Last-Modified": formatdate(self.server.modified, usegmt=True), "Accept-Ranges": "bytes"}
        return headers | ({"ETag": etag(data)} if self.server.has_etags else {})

    def ranged(self, data: bytes, start: int, end: int) -> dict[str, str]:
        """Headers of a part."""
        return {**self.described(data), "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}

    def answer(self, status: int, data: bytes, headers: dict[str, str], *, body: bytes | None = None) -> None:
        """Sends an answer; ``body`` may be other than what the headers promise."""
        self.send_response(status)
        length = {"Content-Length": str(len(data))} if self.server.states_length else {"Connection": "close"}
        for name, value in {**length, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data if body is None else body)


@functools.lru_cache(maxsize=64)
def etag(data: bytes) -> str:
    """As S3 makes them."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def truncate(handler: Handler, data: bytes, start: int, end: int) -> bool:
    """Promises the range and sends half of it."""
    handler.answer(206, data[start:end], handler.ranged(data, start, end), body=data[start : (start + end) // 2])
    handler.close_connection = True
    return True


def send_less(handler: Handler, data: bytes, start: int, end: int) -> bool:
    """Sends half of the range, and says so in a well-formed answer."""
    end = (start + end) // 2
    handler.answer(206, data[start:end], handler.ranged(data, start, end))
    return True


def send_other_range(handler: Handler, data: bytes, start: int, end: int) -> bool:
    """Sends the object's first bytes as if they were those asked for, but states the truth in the header."""
    length = end - start
    handler.answer(206, data[:length], handler.ranged(data, 0, length))
    return True


def ignore_range(handler: Handler, data: bytes, start: int, end: int) -> bool:
    """Sends all of the object."""
    del start, end
    handler.answer(200, data, handler.described(data))
    return True


def lie_about_etag(handler: Handler, data: bytes, start: int, end: int) -> bool:
    """Sends right bytes under another ETag."""
    headers = {**handler.ranged(data, start, end), "ETag": '"0123456789abcdef"'}
    handler.answer(206, data[start:end], headers)
    return True


def drop_etag(handler: Handler, data: bytes, start: int, end: int) -> bool:
    """Sends right bytes without an ETag."""
    headers = handler.ranged(data, start, end)
    headers.pop("ETag", None)
    handler.answer(206, data[start:end], headers)
    return True


def be_busy(handler: Handler, data: bytes, start: int, end: int) -> bool:
    """Answers 503."""
    del data, start, end
    handler.answer(503, b"<Error><Code>SlowDown</Code></Error>", {})
    return True


def hang_up(handler: Handler, data: bytes, start: int, end: int) -> bool:
    """Closes the connection without a word."""
    del data, start, end
    handler.close_connection = True
    return True


def stall(handler: Handler, data: bytes, start: int, end: int) -> bool:
    """Sends the head and the first byte, then nothing until the server is closed."""
    handler.answer(206, data[start:end], handler.ranged(data, start, end), body=data[start : start + 1])
    handler.wfile.flush()
    handler.server.released.wait(60)
    handler.close_connection = True
    return True
