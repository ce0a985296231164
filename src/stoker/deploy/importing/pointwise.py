# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Functions of one number: what each of torch's is among those of :mod:`stoker.deploy.floating.functions`."""

from __future__ import annotations

import numpy as np
from torch import fx

from stoker.deploy.floating.operations import FloatPointwise
from stoker.deploy.importing.matching import Handler, Matcher, arguments


def _pointwise(function: str, *names: str) -> Handler:
    def handle(at: Matcher, node: fx.Node) -> None:
        given = arguments(node)
        source = at.value(node, given.get("self", given.get("input")))
        at.add(FloatPointwise, node, [source], function=function, arguments=tuple(float(given[name]) for name in names))

    return handle


def _clamp(low: float | None, high: float | None) -> Handler:
    def handle(at: Matcher, node: fx.Node) -> None:
        given = arguments(node)
        ends = [given.get("min", given.get("min_val", low)), given.get("max", given.get("max_val", high))]
        least, most = (
            default if end is None else float(end) for end, default in zip(ends, (-np.inf, np.inf), strict=True)
        )
        at.add(FloatPointwise, node, [at.value(node, given["self"])], function="clamp", arguments=(least, most))

    return handle


def _always(function: str, *numbers: float) -> Handler:
    """A function whose arguments are no arguments of torch's."""

    def handle(at: Matcher, node: fx.Node) -> None:
        at.add(FloatPointwise, node, [at.value(node, node.args[0])], function=function, arguments=numbers)

    return handle


def _celu(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    alpha = float(given["alpha"])
    source = at.value(node, given["self"])
    at.add(FloatPointwise, node, [source], function="elu", arguments=(alpha, 1.0, 1 / alpha))


def _rrelu(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    slope = (float(given["lower"]) + float(given["upper"])) / 2
    at.add(FloatPointwise, node, [at.value(node, given["self"])], function="leaky_relu", arguments=(slope,))


def _subtracted_from(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    factor, offset = -float(given["alpha"]), float(given["other"])
    at.add(FloatPointwise, node, [at.value(node, given["self"])], function="linear", arguments=(factor, offset))


def _gelu(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    function = "gelu_tanh" if given["approximate"] == "tanh" else "gelu"
    at.add(FloatPointwise, node, [at.value(node, given["self"])], function=function)


def _power(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    functions = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt"}
    exponent, source = float(given["exponent"]), at.value(node, given["self"])
    if exponent in functions:
        at.add(FloatPointwise, node, [source], function=functions[exponent])
    else:
        at.add(FloatPointwise, node, [source], function="power", arguments=(exponent,))


_SAME = (
    "sigmoid", "tanh", "silu", "hardswish", "hardsigmoid", "mish", "exp", "log", "sqrt", "rsqrt", "abs", "square",
    "log_sigmoid", "expm1", "log1p", "log2", "log10", "erf", "sin", "cos", "reciprocal",
)  # fmt: skip
"""Functions that have no arguments, and the same name there."""

POINTWISE: dict[str, Handler] = {
    "relu": _clamp(0.0, None),
    "relu6": _clamp(0.0, 6.0),
    "hardtanh": _clamp(None, None),
    "clamp": _clamp(None, None),
    "clip": _clamp(None, None),
    "clamp_min": _clamp(None, None),
    "clamp_max": _clamp(None, None),
    **{name: _pointwise(name) for name in _SAME},
    "leaky_relu": _pointwise("leaky_relu", "negative_slope"),
    "elu": _pointwise("elu", "alpha", "scale", "input_scale"),
    "selu": _always("elu", 1.6732632423543772, 1.0507009873554805),
    "celu": _celu,
    "rrelu": _rrelu,
    "softplus": _pointwise("softplus", "beta", "threshold"),
    "hardshrink": _pointwise("hardshrink", "lambd"),
    "softshrink": _pointwise("softshrink", "lambd"),
    "threshold": _pointwise("threshold", "threshold", "value"),
    "gelu": _gelu,
    "pow.Tensor_Scalar": _power,
    "neg": _always("linear", -1.0, 0.0),
    "rsub.Scalar": _subtracted_from,
}
"""By the operation's name and overload, as :data:`stoker.deploy.importing.handlers.HANDLERS` has them."""
