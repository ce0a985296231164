"""The results of a calibration: seconds of single operations at selected sizes, as plain data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

FORMAT = 1
"""Incremented whenever a measurement changes its meaning; an older file requires a new calibration."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an operation: which curve it lies on, where, and what it computes and moves."""

    curve: str
    dims: tuple[float, ...]
    flops: float
    bytes: float
    """Bytes read and written, each tensor once."""
    rows: float = 0.0
    """Rows of a table, looked up one by one."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One measured operation."""

    work: Work
    warm_s: float
    """With its tensors in the last cache."""
    cold_s: float
    """With its tensors in memory."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """A machine's speed, as torch's CPU kernels reach it with so many threads."""

    format: int = FORMAT
    machine: str
    """Name of its processor, as the system reports it."""
    threads: int
    torch: str
    """Version of torch whose kernels were measured."""
    measured_at: str
    """Date and time, UTC."""
    took_s: float
    cache_bytes: int
    """Size of the last level of cache."""
    samples: tuple[Sample, ...]
    host_s: Mapping[str, float]
    """Overhead of an operation besides its kernel, by phase: Python, dispatch, the autograd graph."""
    coldness: Mapping[str, float] = {}
    """Fraction of operations' tensors in memory (1) instead of caches (0), by phase, in steps that keep as much alive
    as caches hold, or more."""
    all_reduce: tuple[tuple[float, float], ...] = ()
    """Sizes in bytes, with the seconds of summing them over two processes of this machine by gloo."""
    fault_s_per_byte: float = 0.0
    """Time per byte of memory that is touched for the first time after allocation."""
    disturbed_share: float = 0.0
    """Share of samples during which the system ran something else."""

    def to_json(self) -> bytes:
        """The rates as JSON."""
        return msgspec.json.encode(self)


class RatesError(ValueError):
    """A file of rates is missing, unreadable, or of another kind of measurement."""


def default_path() -> Path:
    """Where the calibration of this machine is kept: ``$XDG_STATE_HOME/stoker``, or ``~/.local/state/stoker``."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "stoker" / "machine.json"


def save(rates: Rates, path: Path) -> None:
    """Writes the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(rates.to_json())
    part.replace(path)


def load(path: Path) -> Rates:
    """The rates in a file.

    Raises:
        RatesError: there is none, or not one of this version.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RatesError(
            f"`{path}` cannot be read ({error.strerror}); measure this machine: stoker perf calibrate"
        ) from None
    try:
        kind = msgspec.json.decode(content, type=dict[str, object]).get("format")
        if kind != FORMAT:
            raise RatesError(f"`{path}` must be of format {FORMAT}, got {kind}; measure again: stoker perf calibrate")
        return msgspec.json.decode(content, type=Rates)
    except msgspec.MsgspecError as error:
        raise RatesError(f"`{path}` is no calibration ({error}); measure again: stoker perf calibrate") from None
