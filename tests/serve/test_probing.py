"""A model whose samples tell in each other's answers is found, and others are left alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stoker.serve.engine import ANY, Arrays, Interface, TensorSpec
from stoker.serve.processes.probing import mixed

F4, I8 = np.dtype("f4"), np.dtype("i8")
WEIGHTS = np.random.default_rng(1).standard_normal((8, 3)).astype(F4)
STATE = np.random.default_rng(2)


class Computing:
    """An engine that computes by a function."""

    def __init__(self, call: Callable[..., object], spec: TensorSpec, dtype: np.dtype[np.generic] = F4) -> None:
        self.interface = Interface((spec,), (TensorSpec("y", dtype, (ANY, ANY)),), "test")
        self._call = call
        self.given: list[np.ndarray] = []

    def run(self, inputs: Arrays) -> Arrays:
        self.given.append(inputs["x"])
        return {"y": np.asarray(self._call(inputs["x"]))}

    def close(self) -> None:
        pass


REALS = TensorSpec("x", F4, (ANY, 8))


def dynamic(x: np.ndarray) -> np.ndarray:
    """As dynamic quantisation, whose scale is that of the whole batch."""
    scale = np.abs(x).max() / 7
    return (np.round(x / scale) * scale) @ WEIGHTS


@pytest.mark.parametrize("call", [lambda x: x - x.mean(0), dynamic, lambda x: np.sort(x, 0), lambda x: x + x.sum()])
def test_what_mixes_its_batch_is_found(call: Callable[..., object]) -> None:
    assert mixed(Computing(call, REALS)) == "`y` of a sample depends on the other samples of its batch"


def test_whole_numbers_are_compared_exactly() -> None:
    assert mixed(Computing(lambda x: (1e6 * x).astype(int) + len(x), REALS, I8))
    assert not mixed(Computing(lambda x: (1e6 * x).astype(int), REALS, I8))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x @ WEIGHTS,
        lambda x: (x @ WEIGHTS) * (1 + 1e-5 * len(x)),  # another order of additions
        lambda x: x / 0 * 0,
        lambda x: np.zeros((len(x), 0), F4),
        lambda x: x + STATE.random(x.shape),  # random anyhow
        lambda x: x.mean(0, keepdims=True),  # said when a request comes
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_does_not_is_not(call: Callable[..., object]) -> None:
    assert mixed(Computing(call, REALS)) == ""


def test_a_model_that_takes_no_such_numbers_is_not_judged() -> None:
    def raises(x: object) -> object:
        raise IndexError(x)

    assert mixed(Computing(raises, REALS)) == ""


@pytest.mark.parametrize("values", [(3, 9), (5, 5), (-(2**62), 2**62), None])
def test_numbers_are_within_the_range_of_an_input(values: tuple[int, int] | None) -> None:
    engine = Computing(lambda x: x, TensorSpec("x", I8, (ANY, 1), values), I8)
    assert mixed(engine) == ""
    low, high = values or (0, 1)
    both = engine.given[-1]
    assert both.min() >= low
    assert both.max() <= high
    assert (both[0] != both[1]).all() or low == high
