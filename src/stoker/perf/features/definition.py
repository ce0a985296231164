"""Characterises what a function of a user's module defines: runs it in a child process, which may crash."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from stoker.core.code.definitions import parted
from stoker.core.errors import ConfigError, TracingError
from stoker.perf.features.child_process import run_child
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.program import TIMELINE
from stoker.perf.features.records import StepFeatures


@dataclass(frozen=True, slots=True)
class Defined:
    """The features found for a definition.

    Attributes:
        batch_size: the definition's own.
        traced: features for one or two sizes of a batch, which need not be its own.
    """

    batch_size: int
    traced: tuple[StepFeatures, ...]


def characterise_definition(target: str, *, hints: Mapping[str, float] | None = None) -> Defined:
    """What one training step of a definition computes, touches and keeps.

    The function returns what ``stoker.perf.characterise`` takes: a dict of its arguments, a tuple of the first ones
    (module, inputs), or finished features. It is called with the meta device as torch's default, so that weights of any
    size cost nothing. A function without a parameter has one batch; one with a parameter is called with two sizes near
    the parameter's default. They are primes: with powers of two, activations may have the size of some weight by
    chance, and operations on both would count as one kind.

    Args:
        target: ``package.module:function`` or ``file.py:function``.
        hints: elements or fractions by line or operation, as for ``characterise``.

    Raises:
        TracingError: the function does not exist, fails, or returns something else; fields: status.
    """
    return _run(target, hints, "features")[0]


def trace_definition(
    target: str, *, hints: Mapping[str, float] | None = None, sizes: Sequence[int] = ()
) -> list[tuple[StepFeatures, MemoryTimeline]]:
    """One training step of a definition and its memory: of its own batch, and of a larger one if it takes a size.

    Errors as those of :func:`characterise_definition`; finished features have no timeline.

    Args:
        target: as above.
        hints: as above.
        sizes: of batches to trace instead, for a definition that takes a size.
    """
    defined, timelines = _run(target, hints, "memory", sizes)
    if len(timelines) != len(defined.traced):
        raise TracingError(f"`{target}` must return a module and its inputs, got finished features", status=0)
    return list(zip(defined.traced, timelines, strict=True))


def _run(
    target: str, hints: Mapping[str, float] | None, wanted: Literal["features", "memory"], sizes: Sequence[int] = ()
) -> tuple[Defined, tuple[MemoryTimeline, ...]]:
    try:
        module, function = parted(target)
    except ConfigError as error:
        raise TracingError(error.args[0], status=None) from error
    with tempfile.TemporaryDirectory(prefix="stoker-features-") as folder:
        out = Path(folder, "features.json")
        arguments = [str(out), module, function, json.dumps(dict(hints or {})), wanted, json.dumps(list(sizes))]
        status = run_child("stoker.perf.features.definition_child", arguments)
        content: dict[str, Any] = json.loads(out.read_bytes()) if out.exists() else {}
        found = sorted(Path(folder).glob(f"*-{TIMELINE}"))
        timelines = tuple(MemoryTimeline.from_json(path.read_bytes()) for path in found)
    if "features" in content:
        traced = tuple(msgspec.convert(each, StepFeatures) for each in content["features"])
        return Defined(content["batch_size"], traced), timelines
    if "error" in content:
        raise TracingError(content["error"], status=status)
    ended = f"was killed by signal {-status}" if status < 0 else f"failed with status {status}"
    raise TracingError(f"`{target}` {ended}; what it printed is above", status=status)
