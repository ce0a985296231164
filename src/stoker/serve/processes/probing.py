"""Whether the samples of a batch know nothing of each other, found by running a model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stoker.serve.engine import Arrays, ModelEngine, TensorSpec

PROBE_RUNS = 6
"""Samples that are run."""
_LEAST = 1e-6
_TOLERANCE = {"f8": 1e-3, "f4": 1e-3, "f2": 3e-2}
"""Shares of the largest number: kernels for a batch add in another order than those for one sample."""


def mixed(engine: ModelEngine) -> str:
    """Why requests must not share a batch, in words; empty where two samples get together what each gets alone.

    A model that subtracts the mean of its batch, or finds the scale of its numbers in it, would mix what clients send.
    A model that fails at these inputs, or answers one twice in two ways, is not judged.

    Args:
        engine: whose inputs and outputs have free first axes.
    """
    random = np.random.default_rng(0)
    both = {spec.name: _two_that_differ(spec, random) for spec in engine.interface.inputs}
    first, last = ({name: array[place : place + 1] for name, array in both.items()} for place in (0, 1))
    try:
        alone = [_copied(engine.run(each)) for each in (first, last)]
        again = _copied(engine.run(first))
        together = _copied(engine.run(both))
    except Exception:  # not what the user's model takes: nothing is known of it
        return ""
    for spec in engine.interface.outputs:
        if any(len(given[spec.name]) != 1 for given in (*alone, again)) or len(together[spec.name]) != 2:
            return ""
        if _differs(alone[0][spec.name], again[spec.name]):
            return ""
    for spec in engine.interface.outputs:
        for place, given in enumerate(alone):
            if _differs(given[spec.name], together[spec.name][place : place + 1]):
                return f"`{spec.name}` of a sample depends on the other samples of its batch"
    return ""


def _copied(outputs: Arrays) -> dict[str, npt.NDArray[np.generic]]:
    return {name: np.array(array) for name, array in outputs.items()}


def small_numbers(spec: TensorSpec, samples: int, random: np.random.Generator) -> npt.NDArray[np.generic]:
    """Numbers that a model is likely to take, for an input: small ones, as the rows of a table are few in some models.

    Args:
        spec: of the input; free sizes other than the first are 1.
        samples: size of the first axis.
        random: source of the numbers.
    """
    shape = (max(samples, 1), *(max(size, 1) for size in spec.shape[1:])) if spec.shape else ()
    if spec.dtype.kind == "f":
        return (random.random(shape) - 0.5).astype(spec.dtype)
    low, high = spec.values or (0, 1)
    return _within(spec, random.integers(low, min(high, low + 255), shape, endpoint=True))


def _two_that_differ(spec: TensorSpec, random: np.random.Generator) -> npt.NDArray[np.generic]:
    found = small_numbers(spec, 2, random)
    if spec.dtype.kind != "f" and (found[0] == found[1]).all():
        low, high = spec.values or (0, 1)
        first = found[:1].astype(np.int64)
        other = low + high - first if high - low < 256 else low + (first == low)
        found[1:] = _within(spec, other)
    return found


def _within(spec: TensorSpec, found: npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
    """For columns of tables of several sizes; 0 where nothing reads one."""
    if spec.highs:
        found = np.minimum(found, np.maximum(np.reshape(spec.highs, spec.shape[1:]), 0))
    return found.astype(spec.dtype)


def _differs(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> bool:
    if one.shape != other.shape:
        return True
    if one.dtype.kind != "f":
        return not np.array_equal(one, other)
    left, right = one.astype(np.float64), other.astype(np.float64)
    bound = _TOLERANCE[one.dtype.str[1:]] * max(_largest(left), _largest(right)) + _LEAST
    return not np.allclose(left, right, rtol=0.0, atol=bound, equal_nan=True)


def _largest(values: npt.NDArray[np.float64]) -> float:
    return float(np.abs(np.where(np.isfinite(values), values, 0.0)).max(initial=0.0))
