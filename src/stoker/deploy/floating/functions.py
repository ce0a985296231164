"""Functions of one number, as torch defines them, in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]

_LEAST = 1e-12
"""Numbers of grids that hold 0 are cut here where a function has none at 0."""
_erf: Callable[[Any], Any] = np.vectorize(math.erf, otypes=[np.float64])


def apply(name: str, x: Real, arguments: tuple[float, ...] = ()) -> Real:
    """The function's value at each number; infinite ones are cut to the largest finite.

    Raises:
        KeyError: there is no such function.
    """
    with np.errstate(all="ignore"):
        return np.nan_to_num(np.asarray(FUNCTIONS[name](x, *arguments), np.float64))


def _clamp(x: Real, low: float = -math.inf, high: float = math.inf) -> Real:
    return np.clip(x, low, high)


def _sigmoid(x: Real) -> Real:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _gelu(x: Real) -> Real:
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _gelu_tanh(x: Real) -> Real:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _silu(x: Real) -> Real:
    return x * _sigmoid(x)


def _hardswish(x: Real) -> Real:
    return x * np.clip(x + 3, 0, 6) / 6


def _hardsigmoid(x: Real) -> Real:
    return np.clip(x / 6 + 0.5, 0, 1)


def _leaky_relu(x: Real, slope: float = 0.01) -> Real:
    return np.where(x >= 0, x, slope * x)


def _elu(x: Real, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Real:
    return scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) * input_scale))


def _softplus(x: Real, beta: float = 1.0, threshold: float = 20.0) -> Real:
    return np.where(x * beta > threshold, x, np.logaddexp(0, beta * x) / beta)


def _log_sigmoid(x: Real) -> Real:
    return -np.logaddexp(0, -x)


def _hardshrink(x: Real, width: float = 0.5) -> Real:
    return np.where(np.abs(x) > width, x, 0)


def _softshrink(x: Real, width: float = 0.5) -> Real:
    return np.sign(x) * np.maximum(np.abs(x) - width, 0)


def _threshold(x: Real, threshold: float, value: float) -> Real:
    return np.where(x > threshold, x, value)


def _mish(x: Real) -> Real:
    return x * np.tanh(_softplus(x))


def _log(x: Real) -> Real:
    return np.log(np.maximum(x, _LEAST))


def _log2(x: Real) -> Real:
    return _log(x) / math.log(2)


def _log10(x: Real) -> Real:
    return _log(x) / math.log(10)


def _log1p(x: Real) -> Real:
    return np.log1p(np.maximum(x, _LEAST - 1))


def _sqrt(x: Real) -> Real:
    return np.sqrt(np.maximum(x, 0))


def _rsqrt(x: Real) -> Real:
    return 1 / np.sqrt(np.maximum(x, _LEAST))


def _reciprocal(x: Real) -> Real:
    return 1 / np.where(np.abs(x) < _LEAST, _LEAST, x)


def _linear(x: Real, factor: float = 1.0, offset: float = 0.0) -> Real:
    return x * factor + offset


FUNCTIONS: dict[str, Callable[..., Real]] = {
    "clamp": _clamp,
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "hardswish": _hardswish,
    "hardsigmoid": _hardsigmoid,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "softplus": _softplus,
    "mish": _mish,
    "exp": np.exp,
    "log": _log,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "abs": np.abs,
    "square": np.square,
    "power": np.power,
    "reciprocal": _reciprocal,
    "log_sigmoid": _log_sigmoid,
    "hardshrink": _hardshrink,
    "softshrink": _softshrink,
    "threshold": _threshold,
    "expm1": np.expm1,
    "log1p": _log1p,
    "log2": _log2,
    "log10": _log10,
    "erf": _erf,
    "sin": np.sin,
    "cos": np.cos,
    "linear": _linear,
}
"""``clamp`` is every rectifier; ``linear`` is what scalars do."""
