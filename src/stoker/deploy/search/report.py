"""What a search found, as a record that can be shown, and the foldings of one that can be built."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from stoker.core.units import format_seconds
from stoker.deploy.rtl.folding import Folding
from stoker.deploy.search.families import SolvedDesign
from stoker.deploy.search.memory_forms import mapped
from stoker.deploy.search.model import KINDS, DeviceDemand, ResourceModel, node_contents
from stoker.deploy.search.searching import DesignLimits, FamilyOutcome, FoundDesign, SearchOutcome
from stoker.deploy.search.solving import shares
from stoker.deploy.tools.devices import Fpga
from stoker.records.deploy.search import (
    DesignRow,
    FamilyRow,
    FoldingProof,
    LayerRow,
    MemoryRow,
    SearchLimits,
    SearchReport,
)

RESOURCES = {"luts": "LUTs", "flip_flops": "flip-flops", "dsps": "DSPs", "block_rams": "block RAMs"}
"""Words for kinds of resources."""


def report_of(outcome: SearchOutcome, wanted: DesignLimits, part: Fpga, model: ResourceModel) -> SearchReport:
    """The record of a search."""
    shown = outcome.nearest
    certificate = shown.design.certificate
    return SearchReport(
        limits=SearchLimits(
            device=part.name, latency_s=_given(wanted.latency_s), rate_per_s=wanted.rate_per_s or None,
            loss_frac=_given(wanted.loss_frac),
        ),
        there={kind: getattr(part, kind) for kind in KINDS},
        model=model.obtained,
        pick=_row(outcome.pick, part) if outcome.pick else None,
        digest=shown.family.package.digest,
        layers=tuple(_layers(shown.design, model)),
        proof=FoldingProof(
            combinations=certificate.combinations, choices=certificate.choices, objective=certificate.objective,
            bound=certificate.bound, gap=certificate.gap,
        ),
        front=tuple(_row(found, part) for found in outcome.front),
        families=tuple(_family(each, outcome, wanted, part) for each in outcome.families),
        nearest=None if outcome.pick else _row(shown, part),
        misses=() if outcome.pick else tuple(misses(shown, wanted, part)),
        notes=tuple(_notes(outcome, wanted)),
    )  # fmt: skip


def read_foldings(path: Path, digest: str) -> dict[str, Folding]:
    """The foldings of the design that a search picked.

    Args:
        path: of a report of ``stoker deploy search --out``.
        digest: of the package that they are for.

    Raises:
        ValueError: the file is no such report, has no pick, or is of another package.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=SearchReport)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(
            f"`{path}` must be a report of a search: {error}; write one with `stoker deploy search --out`"
        ) from None
    if found.pick is None:
        raise ValueError(f"`{path}` must have a pick, and nothing kept its limits; search again with others")
    if found.digest != digest:
        raise ValueError(
            f"`{path}` must be of this package, and its pick is of `{found.pick.package}` "
            f"({found.digest[:12]}, here {digest[:12]})"
        )
    return {name: Folding(*fold) for name, fold in found.pick.foldings.items()}


def misses(found: FoundDesign, wanted: DesignLimits, part: Fpga) -> Iterator[str]:
    """Which limits a design breaks, and by how much."""
    design = found.design
    for kind, share in shares(design.estimate.demand, part).items():
        if share > 1:
            taken, there = math.ceil(design.estimate.demand.of(kind)), getattr(part, kind)
            yield f"{taken:,} of {there:,} {RESOURCES[kind]}: {taken - there:,} too many"
    if design.rate_per_s < wanted.rate_per_s:
        yield f"{design.rate_per_s:,.0f} of {wanted.rate_per_s:,.0f} samples/s"
    if design.latency_s > wanted.latency_s:
        yield f"a latency of {format_seconds(design.latency_s)}, at most {format_seconds(wanted.latency_s)} allowed"
    loss = found.family.package.loss_frac
    if loss is not None and loss > wanted.loss_frac:
        yield f"a loss of {100 * loss:.2f} %, at most {100 * wanted.loss_frac:.2f} % allowed"


def _given(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _row(found: FoundDesign, part: Fpga) -> DesignRow:
    design = found.design
    demand = design.estimate.demand
    by_kind = shares(demand, part)
    return DesignRow(
        package=found.family.package.name, structure=found.family.structure, cycles=design.cycles,
        latency_cycles=design.latency_cycles, clock_mhz=design.estimate.clock_mhz,
        multipliers=design.structure.multipliers, luts=demand.luts, flip_flops=demand.flip_flops, dsps=demand.dsps,
        block_rams=demand.block_rams, share=design.share, binding=max(by_kind, key=lambda kind: by_kind[kind]),
        loss_frac=found.family.package.loss_frac,
        foldings={name: (fold.pe, fold.lanes, fold.taps) for name, fold in design.foldings.items()},
    )  # fmt: skip


def _layers(design: SolvedDesign, model: ResourceModel) -> Iterator[LayerRow]:
    structure = design.structure
    for name, node in structure.nodes.items():
        if not node.module:
            continue
        fold = design.foldings.get(node.layer) if node.module == "matrix_unit" else None
        demand: DeviceDemand = design.estimate.nodes[name]
        yield LayerRow(
            layer=node.layer or name, kind=node.module, cycles=node.cycles, busy_frac=node.cycles / structure.cycles,
            fold=f"{fold.pe} x {fold.lanes} x {fold.taps}" if fold else "", luts=demand.luts,
            flip_flops=demand.flip_flops, dsps=demand.dsps, block_rams=demand.block_rams,
            memories=tuple(
                MemoryRow(use=shape.use, words=shape.words, bits=shape.bits, form=found.form, cells=found.cells)
                for shape in node_contents(node).memories
                for found in (mapped(shape, model.family),)
            ),
        )  # fmt: skip


def _family(outcome: FamilyOutcome, whole: SearchOutcome, wanted: DesignLimits, part: Fpga) -> FamilyRow:
    family = outcome.family
    return FamilyRow(
        package=family.package.name, structure=family.structure, requantiser=family.requantiser, tried=outcome.tried,
        why="" if whole.pick is outcome.best else _why(outcome.best, whole.pick, wanted, part),
    )  # fmt: skip


def _why(best: FoundDesign, pick: FoundDesign | None, wanted: DesignLimits, part: Fpga) -> str:
    """What a family lacks."""
    if best.excess > 1:
        return "its nearest design has " + "; ".join(misses(best, wanted, part))
    assert pick is not None, "a design that keeps the limits is picked, or another is"
    if wanted.is_paced:
        return (
            f"takes {100 * best.design.share:.0f} % of the device where the pick takes {100 * pick.design.share:.0f} %"
        )
    return f"gives {best.design.rate_per_s:,.0f} samples/s at most where the pick gives {pick.design.rate_per_s:,.0f}"


def _notes(outcome: SearchOutcome, wanted: DesignLimits) -> Iterable[str]:
    names = [each.family.package.name for each in outcome.families if each.family.package.loss_frac is None]
    if names and math.isfinite(wanted.loss_frac):
        yield f"no accuracy was recorded for {', '.join(dict.fromkeys(names))}: its loss is not limited"
