"""What a search found, as a record that can be shown, and its pick, which can be built."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from stoker.core.units import format_seconds
from stoker.deploy.rtl.engine.cycles import cycles_by_value
from stoker.deploy.rtl.engine.shape import EngineShape
from stoker.deploy.rtl.folding import Folding
from stoker.deploy.search.engine_model import engine_memories
from stoker.deploy.search.engines import EngineDesign
from stoker.deploy.search.families import DataflowDesign, SolvedDesign
from stoker.deploy.search.memory_forms import MappedMemory, MemoryShape, mapped
from stoker.deploy.search.model import KINDS, DeviceDemand, node_contents
from stoker.deploy.search.searching import DesignLimits, FamilyOutcome, FoundDesign, RefusedFamily, SearchOutcome
from stoker.deploy.search.solving import shares
from stoker.deploy.tools.devices import Family, Fpga
from stoker.records.deploy.hardware import UNPLACED
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


def report_of(
    outcome: SearchOutcome, wanted: DesignLimits, part: Fpga, refused: Sequence[RefusedFamily] = (),
    clock_mhz: float | None = None,
) -> SearchReport:  # fmt: skip
    """The record of a search.

    Args:
        outcome: what was found.
        wanted: limits.
        part: that was searched on.
        refused: families that could not be searched.
        clock_mhz: as stated for a part without clocks.
    """
    shown = outcome.nearest
    families = [_family(each, outcome, wanted, part) for each in outcome.families]
    families += [
        FamilyRow(package=each.package, structure=each.structure, requantiser="", tried=0, why=each.why)
        for each in refused
    ]
    return SearchReport(
        limits=SearchLimits(
            device=part.name, clock_mhz=clock_mhz, latency_s=_given(wanted.latency_s),
            rate_per_s=wanted.rate_per_s or None, loss_frac=_given(wanted.loss_frac),
        ),
        there={kind: getattr(part, kind) for kind in KINDS},
        model="; ".join(dict.fromkeys(each.family.obtained for each in outcome.families)),
        pick=_row(outcome.pick, part) if outcome.pick else None,
        digest=shown.family.package.digest,
        layers=tuple(_layers(shown.design, part.family)),
        proof=_proof(shown.design),
        front=tuple(_row(found, part) for found in outcome.front),
        families=tuple(families),
        nearest=None if outcome.pick else _row(shown, part),
        misses=() if outcome.pick else tuple(misses(shown, wanted, part)),
        notes=tuple(_notes(outcome, wanted, part, clock_mhz)),
    )  # fmt: skip


def read_pick(path: Path, digest: str) -> DesignRow:
    """The design that a search picked.

    Args:
        path: of a report of ``stoker deploy search --out``.
        digest: of the package that it is for.

    Raises:
        ValueError: the file is no such report, has no pick, or is of another package.
    """
    pick, own = _picked(path)
    if own != digest:
        raise ValueError(
            f"`{path}` must be of this package, and its pick is of `{pick.package}` ({own[:12]}, here {digest[:12]})"
        )
    return pick


def picked_package(path: Path) -> str:
    """The package of the design that a search picked, as it was named. Errors of :func:`read_pick`."""
    return _picked(path)[0].package


def foldings_of(pick: DesignRow) -> dict[str, Folding]:
    """The foldings of a picked design; none of an engine."""
    return {name: Folding(*fold) for name, fold in pick.foldings.items()}


def engine_of(pick: DesignRow) -> EngineShape | None:
    """The engine of a picked design; None of a dataflow design."""
    return EngineShape(**pick.engine) if pick.engine else None


def misses(found: FoundDesign, wanted: DesignLimits, part: Fpga) -> Iterator[str]:
    """Which limits a design breaks, and by how much."""
    design = found.design
    for kind, share in shares(design.estimate.demand, part).items():
        if share > 1:
            taken, there = math.ceil(design.estimate.demand.of(kind)), getattr(part, kind)
            yield f"{taken:,} of {there:,} {RESOURCES[kind]}: {taken - there:,} too many"
    if design.interval * wanted.rate_per_s > 1:
        yield f"{1 / design.interval:,.0f} of {wanted.rate_per_s:,.0f} samples/s"
    if design.latency > wanted.latency_s:
        yield f"a latency of {format_seconds(design.latency)}, at most {format_seconds(wanted.latency_s)} allowed"
    loss = found.family.package.loss_frac
    if loss is not None and loss > wanted.loss_frac:
        yield f"a loss of {100 * loss:.2f} %, at most {100 * wanted.loss_frac:.2f} % allowed"


def _picked(path: Path) -> tuple[DesignRow, str]:
    """A report's pick, and the digest of its package."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=SearchReport)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(
            f"`{path}` must be a report of a search: {error}; write one with `stoker deploy search --out`"
        ) from None
    if found.pick is None:
        raise ValueError(f"`{path}` must have a pick, and nothing kept its limits; search again with others")
    return found.pick, found.digest


def _given(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _row(found: FoundDesign, part: Fpga) -> DesignRow:
    design = found.design
    demand = design.estimate.demand
    by_kind = shares(demand, part)
    foldings, engine = dict[str, tuple[int, int, int]](), dict[str, int]()
    if isinstance(design, DataflowDesign):
        foldings = {name: (fold.pe, fold.lanes, fold.taps) for name, fold in design.foldings.items()}
    if isinstance(design, EngineDesign):
        engine = structs.asdict(design.image.shape)
    return DesignRow(
        package=found.family.package.name, structure=found.family.structure, cycles=design.cycles,
        latency_cycles=design.latency_cycles, clock_mhz=design.estimate.clock_mhz, multipliers=design.multipliers,
        luts=demand.luts, flip_flops=demand.flip_flops, dsps=demand.dsps, block_rams=demand.block_rams,
        share=design.share, binding=max(by_kind, key=lambda kind: by_kind[kind]),
        loss_frac=found.family.package.loss_frac, foldings=foldings, engine=engine,
    )  # fmt: skip


def _proof(design: SolvedDesign) -> FoldingProof | None:
    if not isinstance(design, DataflowDesign):
        return None
    found = design.certificate
    return FoldingProof(
        combinations=found.combinations, choices=found.choices, objective=found.objective, bound=found.bound,
        gap=found.gap,
    )  # fmt: skip


def _layers(design: SolvedDesign, family: Family) -> Iterator[LayerRow]:
    if isinstance(design, DataflowDesign):
        yield from _units(design, family)
    if isinstance(design, EngineDesign):
        yield from _program(design, family)


def _units(design: DataflowDesign, family: Family) -> Iterator[LayerRow]:
    structure = design.structure
    for name, node in structure.nodes.items():
        if not node.module:
            continue
        fold = design.foldings.get(node.layer) if node.module == "matrix_unit" else None
        demand: DeviceDemand = design.estimate.nodes[name]
        memories = [(shape, mapped(shape, family)) for shape in node_contents(node).memories]
        yield LayerRow(
            layer=node.layer or name, kind=node.module, cycles=node.cycles, busy_frac=node.cycles / structure.cycles,
            fold=f"{fold.pe} x {fold.lanes} x {fold.taps}" if fold else "", luts=demand.luts,
            flip_flops=demand.flip_flops, dsps=demand.dsps, block_rams=demand.block_rams,
            memories=tuple(_memory(*each) for each in memories),
        )  # fmt: skip


def _program(design: EngineDesign, family: Family) -> Iterator[LayerRow]:
    image, demand = design.image, design.estimate.demand
    lanes = image.shape.lanes
    yield LayerRow(
        layer="all", kind="engine", fold=f"{lanes} x {lanes}", cycles=design.cycles, busy_frac=1.0, luts=demand.luts,
        flip_flops=demand.flip_flops, dsps=demand.dsps, block_rams=demand.block_rams,
        memories=tuple(_memory(*each) for each in engine_memories(image.shape, family)),
    )  # fmt: skip
    for name, cycles in cycles_by_value(image).items():
        yield LayerRow(
            layer=name, kind="program", fold="", cycles=cycles, busy_frac=cycles / design.cycles, luts=0.0,
            flip_flops=0.0, dsps=0, block_rams=0, memories=(),
        )  # fmt: skip


def _memory(shape: MemoryShape, found: MappedMemory) -> MemoryRow:
    return MemoryRow(use=shape.use, words=shape.words, bits=shape.bits, form=found.form, cells=found.cells)


def _family(outcome: FamilyOutcome, whole: SearchOutcome, wanted: DesignLimits, part: Fpga) -> FamilyRow:
    family = outcome.family
    return FamilyRow(
        package=family.package.name, structure=family.structure, requantiser=family.requantiser, tried=outcome.tried,
        why="" if whole.pick is outcome.best else _why(outcome.best, whole.pick, wanted, part),
        front=tuple(_row(found, part) for found in outcome.front),
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
    if best.design.estimate.clock_mhz is None:
        return f"takes {best.design.cycles:,} cycles a sample at least where the pick takes {pick.design.cycles:,}"
    return (
        f"gives {1 / best.design.interval:,.0f} samples/s at most where the pick gives {1 / pick.design.interval:,.0f}"
    )


def _notes(
    outcome: SearchOutcome, wanted: DesignLimits, part: Fpga, clock_mhz: float | None
) -> Iterable[str]:  # fmt: skip
    if not part.is_placed:
        times = "times are in cycles" if clock_mhz is None else f"{clock_mhz:g} MHz are stated, and no tool checks them"
        yield f"designs for {part.name} are {UNPLACED}; {times}"
    names = [each.family.package.name for each in outcome.families if each.family.package.loss_frac is None]
    if names and math.isfinite(wanted.loss_frac):
        yield f"no accuracy was recorded for {', '.join(dict.fromkeys(names))}: its loss is not limited"
