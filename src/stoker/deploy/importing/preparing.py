# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Prepares a module for training at the widths that it will have as integers."""

from __future__ import annotations

from typing import TypeVar

from torch import nn
from torch.nn.utils import parametrize

from stoker.deploy.floating import operations as fl
from stoker.deploy.importing.quantising import ImportedModel, import_module
from stoker.deploy.importing.rounding_layers import RoundedInput, round_layer
from stoker.deploy.importing.samples import Samples
from stoker.deploy.lowering.grids import Widths, observed_grid

_Module = TypeVar("_Module", bound=nn.Module)
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)
_MOVES = (fl.FloatReshape, fl.FloatPermute, fl.FloatSlice)
"""Operations whose results have the grid of what they read."""


def prepare(module: _Module, samples: Samples, widths: Widths) -> _Module:
    """The module itself, its linear layers and convolutions rounding in every forward pass as the integer model will.

    Train it as before; a tenth of the learning rate that it was trained with is a start. Its parameters are the same
    objects, its ``state_dict`` has the same names, and :func:`stoker.deploy.importing.quantising.quantise` takes it at
    the same widths.

    Args:
        module: trained; with fixed batch norms, or such that go on learning.
        samples: of a loader; those for calibration give the first ranges.
        widths: of weights and results.

    Raises:
        ModelImportError: it can't be exported, or an operation is not supported; fields: where.
        CalibrationError: a value is not finite; fields: value.
        ConfigError: widths name what has none.
        ValueError: it is prepared already.
    """
    model = import_module(module, samples)
    model.check_names(widths)
    layers = dict(module.named_modules())
    readers = {each.layer: each for each in model.graph.operations if isinstance(layers.get(each.layer), _LAYERS)}
    if any(parametrize.is_parametrized(layers[name]) for name in readers):
        raise ValueError("`module` must not be prepared, and has parametrized layers; load its state into a fresh one")
    for name, each in readers.items():
        round_layer(layers[name], widths.of_weights(each.name, name), _read(model, each, widths))
    return module


def _read(model: ImportedModel, reader: fl.FloatOperation, widths: Widths) -> RoundedInput:
    """The rounding of what a layer reads: of the operation that its result comes from, before moves and a rectifier."""
    by_name = {each.name: each for each in model.graph.operations}
    name = reader.sources[0]
    while name in by_name and (isinstance(by_name[name], _MOVES) or _is_maximum(by_name[name])):
        name = by_name[name].sources[0]
    seen, made = model.seen[name], by_name.get(name)
    rectifier = made
    while isinstance(made, fl.FloatPointwise) and made.function == "clamp" and made.sources[0] in by_name:
        made = by_name[made.sources[0]]
    named = rectifier if rectifier and widths.has_result(rectifier.name, rectifier.layer) else made
    bits = widths.of_result(named.name, named.layer) if named else widths.of_result(name, "")
    grid = observed_grid(seen, bits, "squares")
    low, high = ((end - grid.zero_point) * grid.scale for end in grid.ends)
    return RoundedInput(bits, low, high)


def _is_maximum(each: fl.FloatOperation) -> bool:
    return isinstance(each, fl.FloatPool) and each.kind == "max"
