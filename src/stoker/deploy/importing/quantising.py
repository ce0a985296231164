# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""From a module and samples to an integer graph and a record of how it compares: every choice is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.deploy.comparing import paired, size_error, spread_error
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.floating.column_tables import with_column_tables
from stoker.deploy.floating.operations import FloatGraph
from stoker.deploy.importing.exporting import Captured, capture
from stoker.deploy.importing.handlers import handlers
from stoker.deploy.importing.masks import Masks
from stoker.deploy.importing.matching import Matcher
from stoker.deploy.importing.observing import check_row_numbers, numbers, observe, run, values_of
from stoker.deploy.importing.rounding_layers import settled
from stoker.deploy.importing.samples import BATCH, Samples
from stoker.deploy.ir.bounds import accumulator
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.operations import REQUANTISED
from stoker.deploy.lowering.folding import folded
from stoker.deploy.lowering.grids import RANGE_RULES, Widths
from stoker.deploy.lowering.layout import BATCH as ANY_BATCH
from stoker.deploy.lowering.layout import Laid
from stoker.deploy.lowering.lowering import Lowered, LoweringOptions, lower
from stoker.deploy.lowering.naming import check_names
from stoker.deploy.lowering.observation import Observed
from stoker.deploy.lowering.rounding import ROUNDING_RULES
from stoker.deploy.lowering.roundings import Roundings
from stoker.records.deploy.quantisation import LayerError, MixedRecord, QuantisationRecord, TriedRule

Array = NDArray[Any]
_LAYER_SAMPLES = BATCH
"""Samples that errors by layer are measured on."""


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A module, ready to be quantised at any widths.

    Attributes:
        captured: its graph of torch.
        graph: on real numbers.
        seen: what calibration samples showed.
        roundings: of weights, remembered from design to design.
    """

    captured: Captured
    graph: FloatGraph
    seen: Mapping[str, Observed]
    roundings: Roundings = field(default_factory=Roundings, repr=False, compare=False)

    def lowered(self, options: LoweringOptions) -> Lowered:
        """The integer graph of a design.

        Raises:
            ModelImportError: shapes or numbers that integers can't do; fields: where.
        """
        return lower(self.graph, self.seen, options, self.roundings)

    def check_names(self, widths: Widths) -> None:
        """Refuses widths by layer that name what has none.

        Raises:
            ConfigError: with the closest names.
            ModelImportError: shapes or numbers that integers can't do; fields: where.
        """
        if widths.weights_by_layer or widths.activations_by_layer:
            check_names(widths, self.lowered(LoweringOptions(widths=widths)).named, self.graph)

    def outputs(self, samples: Samples) -> list[Array]:
        """All outputs on real numbers, in order."""
        found: dict[str, list[Array]] = {name: [] for name in self.captured.outputs}

        def note(name: str, tensor: torch.Tensor) -> None:
            if name in found:
                found[name].append(numbers(tensor))

        for inputs in samples.batches():
            run(self.captured, inputs, note)
        return [np.concatenate(found[name]) for name in self.captured.outputs]


@dataclass(frozen=True, slots=True)
class Quantised:
    """What quantising a module gave.

    Attributes:
        lowered: the integer graph, and where each operation's result is in it.
        options: that were taken.
        record: how it compares.
    """

    lowered: Lowered
    options: LoweringOptions
    record: QuantisationRecord

    @property
    def graph(self) -> IntegerGraph:
        """The integer graph."""
        return self.lowered.graph


def import_module(module: torch.nn.Module, samples: Samples) -> ImportedModel:
    """A module and what its values hold over the samples for calibration.

    Raises:
        ModelImportError: it can't be exported, or an operation is not supported; fields: where.
        CalibrationError: a value is not finite, or a number is no row of its table; fields: value.
    """
    calibration = samples.part("calibrate")
    with settled(module):
        captured = capture(module, tuple(each[:2] for each in calibration.inputs), samples.names)
    largest = {
        name: int(each.max())
        for name, each in zip(captured.inputs, samples.inputs, strict=True)
        if not each.dtype.is_floating_point
    }
    graph = with_column_tables(Matcher(captured, handlers(), Masks, largest).graph())
    check_row_numbers(graph, samples.inputs)
    return ImportedModel(captured, graph, observe(captured, calibration.batches(), folded(graph)))


def quantise(
    module: torch.nn.Module,
    samples: Samples,
    *,
    name: str = "model",
    widths: Widths | None = None,
    shifts: bool = False,
) -> Quantised:
    """The integer model of a module.

    Ranges by each rule, with and without bias correction, are measured on the search split, and the best of them with
    weights rounded to nearest as well; the least error of outputs is taken, of several outputs the largest of theirs.
    The accept split judges, and chooses nothing.

    Args:
        module: any; weights stay as they are.
        samples: of a loader, see :func:`stoker.deploy.importing.samples.gather`.
        name: of the model.
        widths: of weights and results; 8 bits by default.
        shifts: requantisers of layers without multipliers.

    Raises:
        ModelImportError: it can't be exported, or an operation is not supported; fields: where.
        CalibrationError: a value is not finite, or a number is no row of its table; fields: value.
        ConfigError: widths name what has none.
    """
    model = import_module(module, samples)
    model.check_names(widths or Widths())
    tried = tried_rules(model, samples, LoweringOptions(widths=widths or Widths(), shifts=shifts))
    options = best_options(tried)
    lowered = model.lowered(options)
    return Quantised(lowered, options, recorded(module, model, samples, name, tried, lowered))


def tried_rules(
    model: ImportedModel, samples: Samples, base: LoweringOptions
) -> list[tuple[TriedRule, LoweringOptions]]:
    """Each way to choose ranges, and the best with each other way to round weights, measured on the search split."""
    search = samples.part("search")
    wanted = model.outputs(search)

    def measured(options: LoweringOptions) -> tuple[TriedRule, LoweringOptions]:
        error = spread_error(outputs(model.lowered(options).graph, search), wanted)
        tried = TriedRule(rule=options.rule, corrected=options.corrected, rounding=options.rounding, error=error)
        return tried, options

    first, *others = ROUNDING_RULES
    tried = [
        measured(replace(base, rule=rule, corrected=corrected, rounding=first))
        for rule in RANGE_RULES
        for corrected in (True, False)
    ]
    best = best_options(tried)
    return [*tried, *(measured(replace(best, rounding=rounding)) for rounding in others)]


def best_options(tried: Sequence[tuple[TriedRule, LoweringOptions]]) -> LoweringOptions:
    """Those with the least error."""
    return min(tried, key=lambda each: each[0].error)[1]


def recorded(
    module: torch.nn.Module, model: ImportedModel, samples: Samples, name: str,
    tried: Sequence[tuple[TriedRule, LoweringOptions]], lowered: Lowered, mixed: MixedRecord | None = None,
) -> QuantisationRecord:  # fmt: skip
    """How an integer model compares with its module, on both splits."""
    search, accept = samples.part("search"), samples.part("accept")
    taken, names = best_options(tried), [port.name for port in lowered.graph.outputs]
    return QuantisationRecord(
        model=name,
        calibrated_on=len(samples.part("calibrate")),
        tried=[each for each, _ in tried],
        rule=taken.rule,
        corrected=taken.corrected,
        rounding=taken.rounding,
        search=paired(outputs(lowered.graph, search), model.outputs(search), search.labels, names),
        accept=paired(outputs(lowered.graph, accept), model.outputs(accept), accept.labels, names),
        layers=layer_errors(model, lowered, accept),
        parameters=sum(each.numel() for each in module.parameters()),
        weight_bits=sum(lowered.weight_bits.values()),
        widest_accumulator_bits=widest_accumulator(lowered.graph),
        operations=len(lowered.graph.operations),
        mixed=mixed,
    )


def outputs(graph: IntegerGraph, samples: Samples) -> list[Array]:
    """All outputs on whole numbers, by the law, in order."""
    engine = NumpyEngine(graph)
    names = [port.name for port in graph.inputs]
    parts = [
        engine({name: np.asarray(each.numpy()) for name, each in zip(names, inputs, strict=True)})
        for inputs in samples.batches()
    ]
    return [np.concatenate([each[port.name] for each in parts]) for port in graph.outputs]


def layer_errors(model: ImportedModel, lowered: Lowered, samples: Samples) -> list[LayerError]:
    """How far each operation's result is from that on real numbers."""
    inputs = tuple(each[:_LAYER_SAMPLES] for each in samples.inputs)
    real = values_of(model.captured, inputs)
    arrays = {port.name: np.asarray(each.numpy()) for port, each in zip(lowered.graph.inputs, inputs, strict=True)}
    whole = NumpyEngine(lowered.graph).all_values(arrays)
    found: list[LayerError] = []
    for each in model.graph.operations:
        laid = lowered.values.get(each.name)
        if laid is None or laid.value not in whole or each.name not in real or laid.axes[:1] != ((ANY_BATCH,),):
            continue
        value = lowered.graph.values[laid.value]
        numbers_found = (_as_torch(whole[laid.value], laid).astype(np.float64) - value.zero_point) * value.scale
        error = size_error(numbers_found.reshape(real[each.name].shape), real[each.name])
        found.append(LayerError(name=each.name, layer=each.layer, error=error))
    return found


def widest_accumulator(graph: IntegerGraph) -> int:
    """Bits of the widest accumulator; 0 without any."""
    return max(
        (accumulator(each, graph.values, graph.constants).bits for each in graph.operations
         if isinstance(each, REQUANTISED)),
        default=0,
    )  # fmt: skip


def _as_torch(array: Array, laid: Laid) -> Array:
    """Numbers of a value in the order of the tensor's axes."""
    sizes = [atom.size for atom in laid.order]
    wanted = [laid.order.index(atom) + 1 for group in laid.axes for atom in group if atom is not ANY_BATCH]
    return array.reshape(len(array), *sizes).transpose(0, *wanted)
