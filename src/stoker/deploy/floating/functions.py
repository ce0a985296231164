"""Functions of one number, as torch defines them, in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]

_erf: Callable[[Any], Any] = np.vectorize(math.erf, otypes=[np.float64])


def apply(name: str, x: Real, arguments: tuple[float, ...] = ()) -> Real:
    """The function's value at each number; infinite ones are cut to the largest finite.

    Raises:
        KeyError: there is no such function.
    """
    with np.errstate(all="ignore"):
        return np.nan_to_num(np.asarray(FUNCTIONS[name](x, *arguments), np.float64))


def _gelu(x: Real) -> Real:
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _gelu_tanh(x: Real) -> Real:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _sigmoid(x: Real) -> Real:
    return 0.5 * (1 + np.tanh(0.5 * x))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "clamp": lambda x, low=-math.inf, high=math.inf: np.clip(x, low, high),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x * _sigmoid(x),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "leaky_relu": lambda x, slope=0.01: np.where(x >= 0, x, slope * x),
    "elu": lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "softplus": lambda x: np.logaddexp(0, x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "exp": np.exp,
    "log": lambda x: np.log(np.maximum(x, 1e-30)),
    "sqrt": lambda x: np.sqrt(np.maximum(x, 0)),
    "rsqrt": lambda x: 1 / np.sqrt(np.maximum(x, 1e-12)),
    "abs": np.abs,
    "square": np.square,
    "linear": lambda x, factor=1.0, offset=0.0: x * factor + offset,
}
"""``clamp`` is every rectifier; ``linear`` is what scalars do."""
