"""What is known of a design: its layers by closed form, its outputs against the law, its place on an FPGA."""

from __future__ import annotations

import msgspec

UNPLACED = "synthesised, not placed: no clock"
"""What a design is on a part that no open tool places designs on."""


class DesignLayer(msgspec.Struct, frozen=True, kw_only=True):
    """One unit of a design."""

    layer: str
    kind: str
    """Module of the unit."""
    fold: str
    """What it computes in a cycle, such as ``2 x 4 x 3``: results, channels, taps; empty for others."""
    multipliers: int
    cycles: int
    """Cycles of a sample."""


class PlacedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of embeddings, on the chip or on the host."""

    layer: str
    rows: int
    size: int
    """Numbers of a row."""
    bits: int
    """The memory of all rows."""
    on_host: bool
    sample_bytes: int
    """What a sample sends for it: row numbers to the chip, rows or sums of rows from the host."""


class DesignSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A design that was written."""

    folder: str
    layers: tuple[DesignLayer, ...]
    cycles: int
    """Between two samples in a full pipeline."""
    multipliers: int
    memory_bits: int
    """Bits of weights, biases, multipliers and tables."""
    fifos: dict[str, int]
    """Words of those in front of joins."""
    update_bytes: int | None = None
    """Size of another model's numbers; None where another model is another design."""
    tables: tuple[PlacedTable, ...] = ()
    """Those that may be on either side; empty where nothing was asked about them."""
    whole_cycles: int | None = None
    """Between two samples with all tables on the chip; None where they are, or can't be."""


class VerifiedWay(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the simulator over all samples."""

    way: str
    samples: int
    outputs: int
    """Numbers compared."""
    differing: int
    """Outputs that are not the law's; those of samples that never came out count."""
    interval: float
    """Cycles between two samples, measured in a full pipeline; 0 where there were too few."""
    latency: int
    """Cycles of the first sample."""
    problem: str
    """What else was wrong; empty if nothing was."""

    @property
    def equal(self) -> bool:
        """Whether nothing was."""
        return not self.differing and not self.problem


class UpdatedWay(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the simulator over all samples, while models change."""

    way: str
    samples: int
    outputs: int
    """Numbers compared."""
    differing: int
    """Outputs that are not the law's of the model that the design says computes the sample."""
    mixed: int
    """Samples whose outputs are not all of one model."""
    updates: int
    """Changes of the model between two samples of the run."""
    load_cycles: int
    """Cycles of the longest transfer, pauses of its sender included; the model before answers meanwhile."""
    until_next_cycles: int
    """Cycles of the longest update until another one could begin: until no sample of the model before is inside."""
    problem: str
    """What else was wrong; empty if nothing was."""

    @property
    def equal(self) -> bool:
        """Whether nothing was."""
        return not (self.differing or self.mixed or self.problem)


class VerifiedUpdates(msgspec.Struct, frozen=True, kw_only=True):
    """All runs over a design whose model changes in mid-stream."""

    ways: tuple[UpdatedWay, ...]
    bytes: int
    """Size of an update."""
    bytes_back: int | None = None
    """Size of the update back to the first model, where models differ in size: on an engine."""

    @property
    def equal(self) -> bool:
        """Whether all are."""
        return all(way.equal for way in self.ways)


class UnitActivity(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a design changes in one of its units."""

    unit: str
    """Name of its instance; empty for what lies around units: streams, forks, counters and registers."""
    layer: str
    """Value that it computes; empty for what only passes words on."""
    kind: str
    """Module of the unit."""
    changes: float
    """Those of each sample: bits of signals and registers, inner modules' among them; no clocks, no memories' words."""
    share_frac: float
    """Share of the design's changes."""


class DesignActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of bits while samples go through a design: an index to compare designs and units by, not power."""

    samples: int
    changes: float
    """Those of each sample."""
    units: tuple[UnitActivity, ...]
    """In the order of the design."""


class VerifiedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """The netlist of a unit alone, given what the samples come to in front of it."""

    layer: str
    kind: str
    """Module of the unit."""
    luts: int
    ways: tuple[VerifiedWay, ...]


class VerifiedNetlist(msgspec.Struct, frozen=True, kw_only=True):
    """Cells that a design was synthesised to, simulated: of the whole design, or of each of its units alone."""

    device: str
    ways: tuple[VerifiedWay, ...] = ()
    """Runs of the whole design; empty where units were simulated."""
    units: tuple[VerifiedUnit, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all outputs are the law's."""
        return all(way.equal for way in (*self.ways, *(way for unit in self.units for way in unit.ways)))


class VerifiedDesign(msgspec.Struct, frozen=True, kw_only=True):
    """All runs over a design."""

    ways: tuple[VerifiedWay, ...]
    cycles: int
    """Between two samples, by closed form."""
    updates: VerifiedUpdates | None = None
    netlist: VerifiedNetlist | None = None
    activity: DesignActivity | None = None

    @property
    def equal(self) -> bool:
        """Whether all are."""
        more = [each for each in (self.updates, self.netlist) if each is not None]
        return all(each.equal for each in (*self.ways, *more))


class FittedDesign(msgspec.Struct, frozen=True, kw_only=True):
    """A design on an FPGA, synthesised, placed and routed: estimates of tools, no board was there."""

    device: str
    luts: tuple[int, int]
    """Taken, and there; so are the others."""
    flip_flops: tuple[int, int]
    dsps: tuple[int, int]
    block_rams: tuple[int, int]
    clock_mhz: float | None
    """By the tool's timing model, after routing; None where the design was synthesised, not placed."""
    cycles: int
    """Between two samples."""
    latency_cycles: int
    """Cycles of a sample through an empty design, simulated."""
    activity: DesignActivity | None = None
    """Changes of bits that were counted in this design; None where they were not."""

    @property
    def latency_s(self) -> float | None:
        """Latency of a sample through an empty design; None without a clock."""
        return None if self.clock_mhz is None else self.latency_cycles / (self.clock_mhz * 1e6)

    @property
    def rate_per_s(self) -> float | None:
        """Samples a second in a full pipeline; None without a clock."""
        return None if self.clock_mhz is None else self.clock_mhz * 1e6 / self.cycles
