"""Headers of requests and of answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from stoker.serve.protocol import answers
from stoker.serve.refusals import RequestRefused, malformed

Headers = Sequence[tuple[bytes, bytes]]
"""As ASGI has them: names in small letters."""

DEFAULT_PRIORITY = 3
"""As RFC 9218 has it: 0 goes first, 7 last."""

_PRIORITY = re.compile(rb"(?:^|,)\s*u\s*=\s*([0-7])\s*(?:,|$)")
_JSON = b"application/json"
_BINARY = b"application/octet-stream"


class RequestHeaders(NamedTuple):
    """What the headers of an inference say.

    Attributes:
        content_bytes: of the body; 0 where they do not tell.
        json_bytes: of its JSON, where binary tensors follow.
        priority: lower goes first.
    """

    content_bytes: int
    json_bytes: int | None
    priority: int


def read_headers(headers: Headers) -> RequestHeaders:
    """Reads them; raises :class:`RequestRefused` for values that break a rule."""
    found = dict(headers)
    content, head = found.get(b"content-length"), found.get(b"inference-header-content-length")
    priority, encoding = found.get(b"priority"), found.get(b"content-encoding")
    if encoding is not None and encoding.lower() != b"identity":
        raise RequestRefused(415, f"`Content-Encoding` must be identity, got {encoding[:20].decode('latin-1')!r}")
    return RequestHeaders(
        0 if content is None else _whole("Content-Length", content),
        None if head is None else _whole("Inference-Header-Content-Length", head),
        DEFAULT_PRIORITY if priority is None else priority_of(priority),
    )


def priority_of(value: bytes) -> int:
    """The urgency that a header ``Priority`` or metadata of that name gives (RFC 9218); lower goes first."""
    match = _PRIORITY.search(value)
    return DEFAULT_PRIORITY if match is None else int(match[1])


def _whole(name: str, value: bytes) -> int:
    if not value.isdigit() or len(value) > 15:
        raise malformed(f"`{name}` must be a whole number, got {value[:20].decode('latin-1')!r}")
    return int(value)


def answer_headers(body_bytes: int, json_bytes: int | None) -> Headers:
    """Headers of an answer with so many bytes, the first of them JSON where binary tensors follow."""
    length = (b"content-length", b"%d" % body_bytes)
    if json_bytes is None:
        return (length, (b"content-type", _JSON))
    return (length, (b"content-type", _BINARY), (b"inference-header-content-length", b"%d" % json_bytes))


def refusal_answer(status: int, message: str, retry_after_ms: int | None) -> tuple[Headers, bytes]:
    """Headers and body of a refusal."""
    body = answers.error(message)
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", _JSON)]
    if retry_after_ms is not None:
        # Whole seconds in the standard's header, so at least 1; ours is exact.
        headers += [
            (b"retry-after", b"%d" % max(1, round(retry_after_ms / 1e3))),
            (b"stoker-retry-after-ms", b"%d" % retry_after_ms),
        ]
    if status == 405:  # of an inference: all else passes Starlette
        headers.append((b"allow", b"POST"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers, body
