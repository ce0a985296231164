"""Text of unknown origin: names of files are bytes, and python keeps those that are not UTF-8 as lone surrogates."""

from __future__ import annotations

from typing import Any, cast

import msgspec


def escaped(text: str) -> str:
    r"""The text in a form that can be shown and written: bytes that are not UTF-8 as ``\xff``."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # surrogates of another origin
        return text.encode("utf-8", "backslashreplace").decode()


def to_json(record: Any) -> bytes:
    """A record as one line of JSON; what cannot be encoded is escaped."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escape_all(msgspec.to_builtins(record)))


def _escape_all(value: Any) -> Any:
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, dict):
        return {_escape_all(key): _escape_all(part) for key, part in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_escape_all(part) for part in cast("list[Any]", value)]
    return value
