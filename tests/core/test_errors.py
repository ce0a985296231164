"""The catalogue of failures: what each one can be caught as, and that all of them cross processes whole."""

from __future__ import annotations

import pickle

import pytest

from stoker.core import errors
from stoker.core.errors import StokerError


def kinds(base: type[StokerError]) -> list[type[StokerError]]:
    return [base, *(kind for child in base.__subclasses__() for kind in kinds(child))]


ALL = sorted({kind for kind in kinds(StokerError) if kind.__module__ == errors.__name__}, key=lambda kind: kind.code)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_crosses_a_process_with_its_fields(kind: type[StokerError]) -> None:
    error = kind("what went wrong", index=13, path="a.jpg")
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is kind
    assert (str(found), found.fields) == (f"what went wrong [{kind.code}]", {"index": 13, "path": "a.jpg"})


def test_codes_differ() -> None:
    assert len({kind.code for kind in ALL}) == len(ALL)


def test_a_program_catches_what_plain_python_would_raise_there() -> None:
    """torch raises RuntimeError for workers and lost ranks; what cannot happen without stoker is not to be retried."""
    as_runtime = {kind.__name__ for kind in ALL if issubclass(kind, RuntimeError)}
    workers = {"WorkerStartError", "WorkerLostError", "SampleKillsWorkerError", "StreamNotRepeatableError"}
    assert as_runtime == {*workers, "ExchangeError"}
    as_os = {kind.__name__ for kind in ALL if issubclass(kind, OSError)}
    assert as_os == {"SourceChangedError", "SourceReadError"}
