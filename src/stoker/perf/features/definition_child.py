# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""Calls a user's function for the arguments of ``characterise``, in a separate process, and writes the features."""

from __future__ import annotations

import inspect
import itertools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from stoker.core.code.definitions import load_function
from stoker.core.errors import StokerError
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.program import TIMELINE
from stoker.perf.features.raised import hush_stand_ins, print_raised
from stoker.perf.features.records import StepFeatures
from stoker.perf.features.step import characterise, trace

_FIRST_BATCH = 1
"""Default batch size of a function with a size parameter but without a default."""


def main() -> None:
    """Arguments: where to write, module, function, hints as JSON, whether features or memory are wanted, and sizes."""
    out, module, name, hints, wanted, asked = sys.argv[1:]
    sizes: list[int] = json.loads(asked)
    timelines: list[MemoryTimeline] = []
    hush_stand_ins()
    try:
        function = load_function(module, name)
        batch, found = _features(function, json.loads(hints), f"{module}:{name}", timelines, wanted, sizes)
        traced = [json.loads(each.to_json()) for each in found]
        content: dict[str, Any] = {"batch_size": batch, "features": traced}
    except _Mistake as error:
        content = {"error": str(error)}
    except StokerError as error:
        content = {"error": error.args[0]}
    except Exception as error:
        print_raised(error)
        sys.exit(1)
    for place, timeline in enumerate(timelines if wanted == "memory" else ()):
        Path(out).with_name(f"{place}-{TIMELINE}").write_bytes(timeline.to_json())
    Path(out).write_text(json.dumps(content), encoding="utf-8")


class _Mistake(Exception):
    """The user's definition breaks a rule."""


def _features(
    function: Callable[..., Any], hints: Mapping[str, float], name: str, timelines: list[MemoryTimeline], wanted: str,
    asked: Sequence[int] = (),
) -> tuple[int, list[StepFeatures]]:  # fmt: skip
    """The definition's own batch, and features for sizes near it, or for it and twice as much to have its memory."""
    parameter = next(iter(inspect.signature(function).parameters.values()), None)
    if parameter is None:
        found = _traced(function, (), hints, name, None, timelines)
        return found.batch_size, [found]
    default = parameter.default
    own = default if isinstance(default, int) and default > 0 else _FIRST_BATCH
    first = next_prime(own)
    sizes = asked or (own, 2 * own) if wanted == "memory" else (first, next_prime(first))
    return own, [_traced(function, (size,), hints, name, size, timelines) for size in sizes]


def next_prime(above: int) -> int:
    """The least prime above a number."""
    return next(n for n in itertools.count(above + 1) if n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1)))


def _traced(
    function: Callable[..., Any], arguments: tuple[int, ...], hints: Mapping[str, float], name: str, size: int | None,
    timelines: list[MemoryTimeline],
) -> StepFeatures:  # fmt: skip
    with torch.device("meta"):
        given = function(*arguments)
    if isinstance(given, StepFeatures):
        return given
    if isinstance(given, tuple) and 2 <= len(given) <= 3:
        given = dict(zip(("module_or_step", "inputs", "optimizer"), given, strict=False))
    if not isinstance(given, Mapping) or not {"module_or_step", "inputs"} <= set(given):
        raise _Mistake(
            f"`{name}` must return what stoker.perf.characterise takes: (module, inputs), (module, inputs, optimizer) "
            f"or a dict with `module_or_step` and `inputs`, got {type(given).__name__}"
        )
    known = inspect.signature(characterise).parameters
    unknown = next((key for key in given if key not in known), None)
    if unknown is not None:
        raise _Mistake(f"`{unknown}` of what `{name}` returns must be one of {', '.join(known)}")
    asked: dict[str, Any] = {"name": name, "hints": hints or None}
    if size is not None:
        asked["batch_size"] = size
    features, timeline = trace(**{**asked, **cast("Mapping[str, Any]", given)})
    timelines.append(timeline)
    return features


if __name__ == "__main__":
    main()
