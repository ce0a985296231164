"""Mixed widths by measurement: designs of :mod:`stoker.deploy.lowering.narrowing`, each lowered and run whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from stoker.deploy.comparing import error_of, loss_of
from stoker.deploy.floating.operations import FloatEmbedding
from stoker.deploy.importing.quantising import (
    ImportedModel,
    Quantised,
    best_options,
    import_module,
    outputs,
    recorded,
    tried_rules,
)
from stoker.deploy.importing.samples import Samples
from stoker.deploy.lowering.costs import COSTS, Cost, Saved, memory
from stoker.deploy.lowering.folding import folded
from stoker.deploy.lowering.grids import Widths
from stoker.deploy.lowering.lowering import Lowered, LoweringOptions
from stoker.deploy.lowering.narrowing import Measured, Narrowing, Part, Width
from stoker.records.deploy.quantisation import MixedRecord, MixedStep, NarrowedWidth


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedDesign:
    """Widths that a search took, and what they came to.

    Attributes:
        measured: bits, cost, and error and loss on the search split.
        options: with the widths.
        lowered: the integer graph.
        accepted: loss on the accept split.
    """

    measured: Measured
    options: LoweringOptions
    lowered: Lowered
    accepted: float


def quantise_mixed(
    module: torch.nn.Module,
    samples: Samples,
    *,
    most: float,
    name: str = "model",
    widths: Widths | None = None,
    shifts: bool = False,
    saved: Saved = "memory",
) -> Quantised:
    """The integer model of a module, each width as narrow as a loss allows.

    Args:
        module: any; weights stay as they are.
        samples: of a loader, see :func:`stoker.deploy.importing.samples.gather`.
        most: loss that is allowed: a share of changed decisions; of outputs that are no scores, their error.
        name: of the model.
        widths: the widest; layers that they name keep theirs.
        shifts: requantisers of layers without multipliers.
        saved: what narrower widths are to save.

    Raises:
        ModelImportError: it can't be exported, or an operation is not supported; fields: where.
        CalibrationError: a value is not finite, or a number is no row of its table; fields: value.
        ConfigError: widths name what has none.
    """
    return quantise_steps(
        module, samples, most=most, count=1, name=name, widths=widths, shifts=shifts, saved=saved
    )[-1]  # fmt: skip


def quantise_steps(
    module: torch.nn.Module,
    samples: Samples,
    *,
    most: float,
    count: int,
    name: str = "model",
    widths: Widths | None = None,
    shifts: bool = False,
    saved: Saved = "memory",
) -> list[Quantised]:
    """Integer models from the widest to the narrowest that a loss allows, each measured whole: packages for a search.

    Args:
        module: any; weights stay as they are.
        samples: of a loader, see :func:`stoker.deploy.importing.samples.gather`.
        most: as of :func:`quantise_mixed`, whose model is the last one.
        count: of models at most, evenly spaced on the way; 1 for the last alone.
        name: of the model.
        widths: the widest; layers that they name keep theirs.
        shifts: requantisers of layers without multipliers.
        saved: what narrower widths are to save.

    Raises:
        ModelImportError: it can't be exported, or an operation is not supported; fields: where.
        CalibrationError: a value is not finite, or a number is no row of its table; fields: value.
        ConfigError: widths name what has none.
    """
    model = import_module(module, samples)
    model.check_names(widths or Widths())
    tried = tried_rules(model, samples, LoweringOptions(widths=widths or Widths(), shifts=shifts))
    designs = mixed_designs(model, samples, best_options(tried), most=most, cost=COSTS[saved])
    steps = [_step(None, designs[0]), *(_step(before, each) for before, each in pairwise(designs))]
    found: list[Quantised] = []
    for place in spaced(designs.index(accepted(designs, most)), count):
        taken = designs[place]
        record = MixedRecord(
            saved=saved, most=most, steps=steps, taken=place, widths=_narrowed(designs[0], taken)
        )  # fmt: skip
        whole = recorded(module, model, samples, name, tried, taken.lowered, record)
        found.append(Quantised(taken.lowered, taken.options, whole))
    return found


def spaced(last: int, count: int) -> list[int]:
    """At most so many places from 0 to the last, both among them, evenly spaced; of one, the last.

    Args:
        last: place.
        count: at least 1.
    """
    return sorted({last - round(last * at / max(1, count - 1)) for at in range(count)})


def mixed_designs(
    model: ImportedModel, samples: Samples, options: LoweringOptions, *, most: float, cost: Cost = memory
) -> list[MixedDesign]:
    """Designs from the given widths down to the narrowest within a loss, each cheaper than the one before.

    The search split chooses the sequence; the accept split is only measured. A search over hardware puts them into its
    front: the cost may be anything that it knows of a design.

    Args:
        model: imported.
        samples: of a loader, all of them.
        options: the widest design; layers that it names keep their widths.
        most: loss that no design may exceed on the search split.
        cost: of a design, less with narrower widths.
    """
    search, accept = samples.part("search"), samples.part("accept")
    wanted, judged = model.outputs(search), model.outputs(accept)

    def measure(bits: Mapping[Width, int], least: float) -> Measured:
        made = model.lowered(with_bits(options, bits))
        price = cost(made)
        if price >= least:  # nothing is saved: not worth a run
            return Measured(bits=bits, cost=price, error=0.0, loss=0.0)
        found = outputs(made.graph, search)
        return Measured(bits=bits, cost=price, error=error_of(found, wanted), loss=loss_of(found, wanted))

    narrowing = Narrowing(measure(choices(model, options), float("inf")), most)
    while (bits := narrowing.next_step()) is not None:
        narrowing.measured(measure(bits, narrowing.design.cost))
    designs: list[MixedDesign] = []
    for each in narrowing.path:
        own = with_bits(options, each.bits)
        made = model.lowered(own)
        loss = loss_of(outputs(made.graph, accept), judged)
        designs.append(MixedDesign(measured=each, options=own, lowered=made, accepted=loss))
    return designs


def accepted(designs: Sequence[MixedDesign], most: float) -> MixedDesign:
    """The last design before the first that the accept split finds to lose too much; the widest if that is the first.

    Designs were put in order without the accept split, and are tried on it in that order up to the first failure, so
    trying many does not make a bad one likelier to pass (fixed sequence testing; Bauer, "Multiple Testing in Clinical
    Trials", 1991, section 3).
    """
    found = designs[0]
    for each in designs:
        if each.accepted > most:
            break
        found = each
    return found


def choices(model: ImportedModel, options: LoweringOptions) -> dict[Width, int]:
    """Widths that may be chosen, at those of the options: of layers and results that these do not name."""
    widths, found = options.widths, dict[Width, int]()
    lowered = model.lowered(options)
    weighted, joined = lowered.weight_bits, lowered.joined
    inside = {each.name for each in joined.values()}
    """Rectifiers inside layers: the width of their results is that of the layers'."""
    tables = {each.name for each in model.graph.operations if isinstance(each, FloatEmbedding) and not each.bag}
    named = [(each.name, "") for each in model.graph.inputs if not each.whole]
    # What only says what counts has the bits that this takes.
    stated = {name for name, grid in model.graph.grids.items() if grid.bits == 1}
    for name, layer in (*named, *((each.name, each.layer) for each in folded(model.graph).operations)):
        if name in weighted and not {name, layer} & {*widths.weights_by_layer}:
            found[Width(name, "weights")] = widths.of_weights(name, layer)
        own = {name, layer} | ({joined[name].name, joined[name].layer} if name in joined else set[str]())
        # Rows have their table's width.
        if name not in inside | tables | stated and not own & {*widths.activations_by_layer}:
            found[Width(name, "activations")] = widths.of_result(name, layer)
    return found


def with_bits(options: LoweringOptions, bits: Mapping[Width, int]) -> LoweringOptions:
    """Options with widths that were chosen."""

    def own(part: Part) -> dict[str, int]:
        return {width.layer: each for width, each in bits.items() if width.part == part}

    widths = options.widths
    return replace(
        options,
        widths=replace(
            widths,
            weights_by_layer={**widths.weights_by_layer, **own("weights")},
            activations_by_layer={**widths.activations_by_layer, **own("activations")},
        ),
    )


def _narrowed(before: MixedDesign, after: MixedDesign) -> list[NarrowedWidth]:
    """Widths in which two designs differ, as the second has them."""
    return [
        NarrowedWidth(layer=width.layer, part=width.part, bits=bits)
        for width, bits in after.measured.bits.items()
        if bits != before.measured.bits[width]
    ]


def _step(before: MixedDesign | None, each: MixedDesign) -> MixedStep:
    return MixedStep(
        narrowed=None if before is None else _narrowed(before, each)[0],
        cost=each.measured.cost,
        search=each.measured.loss,
        accept=each.accepted,
    )
