"""Functions of one number against torch's, with other arguments than the usual ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from stoker.deploy.floating.functions import FUNCTIONS, apply

Function = Callable[[torch.Tensor], torch.Tensor]
CASES: dict[str, tuple[tuple[float, ...], Function]] = {
    "clamp": ((-0.5, 1.5), lambda x: x.clamp(-0.5, 1.5)),
    "sigmoid": ((), torch.sigmoid),
    "tanh": ((), torch.tanh),
    "gelu": ((), F.gelu),
    "gelu_tanh": ((), lambda x: F.gelu(x, approximate="tanh")),
    "silu": ((), F.silu),
    "hardswish": ((), F.hardswish),
    "hardsigmoid": ((), F.hardsigmoid),
    "leaky_relu": ((0.2,), lambda x: F.leaky_relu(x, 0.2)),
    "elu": ((1.6732632423543772, 1.0507009873554805), F.selu),
    "softplus": ((3.0, 1.5), lambda x: F.softplus(x, 3.0, 1.5)),
    "mish": ((), F.mish),
    "exp": ((), torch.exp),
    "log": ((), torch.log),
    "sqrt": ((), torch.sqrt),
    "rsqrt": ((), torch.rsqrt),
    "abs": ((), torch.abs),
    "square": ((), torch.square),
    "linear": ((-2.0, 0.5), lambda x: -2 * x + 0.5),
    "power": ((3.0,), lambda x: x**3),
    "reciprocal": ((), torch.reciprocal),
    "log_sigmoid": ((), F.logsigmoid),
    "hardshrink": ((0.7,), lambda x: F.hardshrink(x, 0.7)),
    "softshrink": ((0.7,), lambda x: F.softshrink(x, 0.7)),
    "threshold": ((0.3, -1.0), lambda x: F.threshold(x, 0.3, -1.0)),
    "expm1": ((), torch.expm1),
    "log1p": ((), torch.log1p),
    "log2": ((), torch.log2),
    "log10": ((), torch.log10),
    "erf": ((), torch.erf),
    "sin": ((), torch.sin),
    "cos": ((), torch.cos),
}


@pytest.mark.parametrize("name", CASES)
def test_a_function_is_torchs(name: str) -> None:
    arguments, function = CASES[name]
    x = np.linspace(-4, 4, 201)
    x = x[np.abs(x) > 1e-6]
    real = function(torch.as_tensor(x)).numpy()
    there = np.isfinite(real)
    assert there.sum() >= 100
    assert np.allclose(apply(name, x, arguments)[there], real[there], atol=1e-12)


def test_all_functions_are_compared() -> None:
    assert set(CASES) == set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_finite_where_it_has_no_value(name: str) -> None:
    arguments, _ = CASES[name]
    assert np.isfinite(apply(name, np.array([-1e6, -1.0, 0.0, 1e6]), arguments)).all()
