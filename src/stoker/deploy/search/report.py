"""What a search found, as a record that can be shown, and its pick, which can be built."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from stoker.core.units import format_seconds
from stoker.deploy.ir.host_tables import tables_of
from stoker.deploy.rtl.engine.cycles import cycles_by_value
from stoker.deploy.rtl.engine.shape import EngineShape
from stoker.deploy.rtl.folding import Folding
from stoker.deploy.rtl.generate import design_digest
from stoker.deploy.rtl.top_text import number_bytes
from stoker.deploy.search.engine_model import engine_memories
from stoker.deploy.search.engines import EngineDesign
from stoker.deploy.search.families import Dataflow, DataflowDesign, SolvedDesign
from stoker.deploy.search.memory_forms import MappedMemory, MemoryShape, mapped
from stoker.deploy.search.model import KINDS, DeviceDemand, node_contents
from stoker.deploy.search.searching import DesignLimits, FamilyOutcome, FoundDesign, RefusedFamily, SearchOutcome
from stoker.deploy.search.solving import BAND, shares
from stoker.deploy.tools.devices import Family, Fpga
from stoker.records.deploy.hardware import UNPLACED
from stoker.records.deploy.search import (
    DesignRow,
    FamilyRow,
    FoldingProof,
    HostedTable,
    LayerForm,
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
        command=_command(shown), design=_digest(shown), forms=tuple(_forms(outcome)),
        tables=tuple(_tables(shown)),
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


def picked_design(path: Path) -> DesignRow:
    """The design that a search picked, of whatever package. Errors of :func:`read_pick`."""
    return _picked(path)[0]


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
    constant, away, compared = tuple[str, ...](), tuple[str, ...](), tuple[str, ...]()
    if isinstance(design, DataflowDesign):
        foldings = {name: (fold.pe, fold.lanes, fold.taps) for name, fold in design.foldings.items()}
        constant, away = design.chosen.constant, design.structure.host_tables
        compared = design.structure.thresholds
    if isinstance(design, EngineDesign):
        engine = structs.asdict(design.image.shape)
    return DesignRow(
        package=found.family.package.name, structure=found.family.structure, cycles=design.cycles,
        latency_cycles=design.latency_cycles, clock_mhz=design.estimate.clock_mhz, multipliers=design.multipliers,
        luts=demand.luts, flip_flops=demand.flip_flops, dsps=demand.dsps, block_rams=demand.block_rams,
        share=design.share, binding=max(by_kind, key=lambda kind: by_kind[kind]),
        loss_frac=found.family.package.loss_frac, foldings=foldings, constant=constant, host_tables=away, engine=engine,
        thresholds=compared,
    )  # fmt: skip


def _command(found: FoundDesign) -> str:
    """The command that writes just this design, without the report."""
    design, words = found.design, ["stoker", "deploy", "rtl", found.family.package.name, "--out", "rtl"]
    if isinstance(design, EngineDesign):
        shape = design.image.shape
        words += ["--structure", "engine", "--lanes", str(shape.lanes)]
        rooms = {
            "data": shape.data_words, "weights": shape.weight_words, "tables": shape.table_words,
            "scales": shape.scale_words, "instructions": shape.instructions,
        }  # fmt: skip
        for name, size in rooms.items():
            words += ["--memory", f"{name}={size}"]
    if isinstance(design, DataflowDesign):
        for name, each in design.chosen.layers.items():
            fold = each.folding
            form = ("--constant", f"{name}={fold.pe}") if each.constant else (
                "--fold", f"{name}={fold.pe}x{fold.lanes}x{fold.taps}"
            )  # fmt: skip
            words += form
        for name in design.structure.thresholds:
            words += ["--thresholds", name]
        for name in design.structure.host_tables:
            words += ["--host-table", name]
    return shlex.join(words)


def _digest(found: FoundDesign) -> str:
    family, design = found.family, found.design
    if not isinstance(family, Dataflow) or not isinstance(design, DataflowDesign):
        return ""
    return design_digest(family.written(design), family.package.digest)


def _forms(outcome: SearchOutcome) -> Iterator[LayerForm]:
    """The forms of the shown design's layers, whichever family it is of: one with weights in the circuit knows both."""
    family, design = _with_constants(outcome), outcome.nearest.design
    if family is None or not isinstance(design, DataflowDesign):
        return
    for name, forms in family.forms(design.cycles).items():
        taken = design.chosen.layers[name]
        # What was chosen may be another folding than the least by itself: its stream's words cost, too.
        for each in [taken if form.constant == taken.constant else form for form in forms]:
            yield LayerForm(
                layer=name, form="circuit" if each.constant else "memories", taken=each is taken,
                fold=_fold(each.folding), cycles=each.cycles, luts=each.demand.luts,
                flip_flops=each.demand.flip_flops, dsps=each.demand.dsps, block_rams=each.demand.block_rams,
            )  # fmt: skip


def _with_constants(outcome: SearchOutcome) -> Dataflow | None:
    """The dataflow family of the shown package, the one that may have weights in the circuit if there are two."""
    package = outcome.nearest.family.package
    own = [each.family for each in outcome.families if isinstance(each.family, Dataflow)]
    own = [each for each in own if each.package is package]
    return max(own, key=lambda each: each.weights == "any", default=None)


def _fold(folding: Folding) -> str:
    return f"{folding.pe} x {folding.lanes} x {folding.taps}"


def _tables(found: FoundDesign) -> Iterator[HostedTable]:
    """Tables with the streams that lead to them: row numbers to the chip, or rows from the host."""
    design = found.design
    if not isinstance(design, DataflowDesign):
        return
    structure = design.structure
    units = {node.layer: node for node in structure.nodes.values() if node.layer}
    for each in tables_of(found.family.package.graph):
        away = each.layer in structure.host_tables
        node = units[each.layer]
        stream = node.stream if away else structure.nodes[node.sources[0]].stream
        yield HostedTable(
            layer=each.layer, rows=each.rows, size=each.size, bits=each.bits, on_host=away,
            sample_bytes=each.host_bytes if away else each.chip_bytes, bus_bits=8 * number_bytes(stream) * stream.lanes,
            words=stream.words,
        )  # fmt: skip


def _proof(design: SolvedDesign) -> FoldingProof | None:
    if not isinstance(design, DataflowDesign):
        return None
    found = design.certificate
    return FoldingProof(
        combinations=found.combinations, choices=found.choices, largest=found.largest, bound=found.bound, gap=found.gap,
        rest=found.rest, rest_bound=found.rest_bound, more_bytes=found.more_bytes,
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
        fold = design.foldings.get(node.layer) if node.module in ("matrix_unit", "constant_unit") else None
        demand: DeviceDemand = design.estimate.nodes[name]
        memories = [(shape, mapped(shape, family)) for shape in node_contents(node).memories]
        yield LayerRow(
            layer=node.layer or name, kind=node.module, cycles=node.cycles, busy_frac=node.cycles / structure.cycles,
            fold=_fold(fold) if fold else "", luts=demand.luts,
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
        package=family.package.name, structure=family.structure, weights=family.weights,
        requantiser=family.requantiser, tried=outcome.tried,
        why="" if whole.pick is outcome.best else _why(outcome.best, whole.pick, wanted, part),
        front=tuple(_row(found, part) for found in outcome.front),
    )  # fmt: skip


def _why(best: FoundDesign, pick: FoundDesign | None, wanted: DesignLimits, part: Fpga) -> str:
    """What a family lacks."""
    if best.excess > 1:
        return "its nearest design has " + "; ".join(misses(best, wanted, part))
    assert pick is not None, "a design that keeps the limits is picked, or another is"
    more, own = best.design.host_bytes, pick.design.host_bytes
    if more > own and (wanted.is_paced or best.design.interval == pick.design.interval):
        return f"a sample sends {more:,} bytes more for tables on the host where the pick sends {own:,}"
    if wanted.is_paced or best.design.interval == pick.design.interval:
        return _why_larger(best.design, pick.design)
    if best.design.estimate.clock_mhz is None:
        return f"takes {best.design.cycles:,} cycles a sample at least where the pick takes {pick.design.cycles:,}"
    given, wished = _apart(1 / best.design.interval, 1 / pick.design.interval)
    return f"gives {given} samples/s at most where the pick gives {wished}"


def _why_larger(design: SolvedDesign, pick: SolvedDesign) -> str:
    """What a design as good but for its shares takes more."""
    (largest, rest), (least, least_rest) = design.order, pick.order
    if largest > least * (1 + BAND) or (largest > least and rest <= least_rest):
        own, other = _apart(100 * largest, 100 * least)
        return f"takes {own} % of the device where the pick takes {other} %"
    if rest > least_rest:
        own, other = _apart(100 * rest, 100 * least_rest)
        return f"takes {own} % with all shares of the device added where the pick takes {other} %"
    return "no better than the pick"


def _apart(one: float, other: float) -> tuple[str, str]:
    """Both numbers, with the fewest decimals that tell them apart."""
    written = ((f"{one:,.{places}f}", f"{other:,.{places}f}") for places in range(16))
    return next((each for each in written if each[0] != each[1]), (f"{one}", f"{other}"))


def _notes(
    outcome: SearchOutcome, wanted: DesignLimits, part: Fpga, clock_mhz: float | None
) -> Iterable[str]:  # fmt: skip
    if not part.is_placed:
        times = "times are in cycles" if clock_mhz is None else f"{clock_mhz:g} MHz are stated, and no tool checks them"
        yield f"designs for {part.name} are {UNPLACED}; {times}"
    names = [each.family.package.name for each in outcome.families if each.family.package.loss_frac is None]
    if names and math.isfinite(wanted.loss_frac):
        yield f"no accuracy was recorded for {', '.join(dict.fromkeys(names))}: its loss is not limited"
    family, design = _with_constants(outcome), outcome.nearest.design
    if family is not None and isinstance(design, DataflowDesign):
        if family.model.sums_off is None:
            yield f"weights are in memories: the model of {family.model.family} was fitted to no unit with others"
        if family.constants.sums and (off := family.model.sums_off):
            yield (
                f"lookup tables of designs with weights in the circuit: {100 * off.median_frac:.0f} % off in the "
                f"median and {100 * off.worst_frac:.0f} % at most, of {off.designs} that the model was fitted to"
            )
        for name, why in family.constants.refused.items():
            yield f"weights of {name} are in memories: {why}"
    if isinstance(design, DataflowDesign) and design.chosen.constant:
        yield "weights in the circuit are another circuit with each training; `--weights memories` keeps them out of it"
