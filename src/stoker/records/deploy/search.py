"""What a search for a design found: the front, the pick with its layers, what became of the others."""

from __future__ import annotations

import msgspec

from stoker.records.deploy.hardware import DesignActivity, PlacedTable

FORMAT = 3


class SearchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; None for what was not."""

    device: str
    clock_mhz: float | None = None
    """As stated for a device on which designs are synthesised, not placed."""
    latency_s: float | None = None
    """Time of a sample through an empty design."""
    rate_per_s: float | None = None
    loss_frac: float | None = None
    """Share of accepted samples whose decision differs from float; the relative error where outputs are no scores."""


class DesignRow(msgspec.Struct, frozen=True, kw_only=True):
    """A design, as the model of its device sees it."""

    package: str
    structure: str
    cycles: int
    """Between two samples, by closed form."""
    latency_cycles: int
    clock_mhz: float | None
    """None where designs are synthesised, not placed, and no clock was stated."""
    multipliers: int
    luts: float
    flip_flops: float
    dsps: int
    block_rams: int
    share: float
    """The largest share of a resource of the device; above 1 if it does not fit."""
    binding: str
    """That resource."""
    loss_frac: float | None
    foldings: dict[str, tuple[int, int, int]] = {}
    """Results, channels and taps of each layer in a cycle, of a dataflow design."""
    constant: tuple[str, ...] = ()
    """Layers whose weights are part of the circuit."""
    host_tables: tuple[str, ...] = ()
    """Layers whose tables stay on the host."""
    thresholds: tuple[str, ...] = ()
    """Layers whose results are found by comparing sums with thresholds."""
    engine: dict[str, int] = {}
    """Lanes of an engine, and words of its memories for one model."""

    @property
    def rate_per_s(self) -> float | None:
        """Samples a second in a full pipeline; None without a clock."""
        return None if self.clock_mhz is None else self.clock_mhz * 1e6 / self.cycles

    @property
    def latency_s(self) -> float | None:
        """Time of a sample through an empty design; None without a clock."""
        return None if self.clock_mhz is None else self.latency_cycles / (self.clock_mhz * 1e6)


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A memory of a unit."""

    use: str
    words: int
    bits: int
    """Width of a word."""
    form: str
    """``block``, ``distributed`` or ``logic``."""
    cells: int


class LayerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of the picked design; of an engine all of it first, then what it computes one after another."""

    layer: str
    kind: str
    fold: str
    cycles: int
    busy_frac: float
    """Share of a sample's cycles in which it works."""
    luts: float
    flip_flops: float
    dsps: int
    block_rams: int
    memories: tuple[MemoryRow, ...]


class LayerForm(msgspec.Struct, frozen=True, kw_only=True):
    """The least unit of a layer that is as fast as the shown design, of one form."""

    layer: str
    form: str
    """``memories`` or ``circuit``: where its weights are."""
    taken: bool
    fold: str
    cycles: int
    luts: float
    flip_flops: float
    dsps: int
    block_rams: int


class HostedTable(PlacedTable, frozen=True, kw_only=True):
    """A table of embeddings of the shown design, and what goes to the chip for it."""

    bus_bits: int
    """Width of the AXI4-Stream that leads to it: row numbers, or rows, in whole bytes."""
    words: int
    """Words of that stream for a sample, one a cycle."""


class FoldingProof(msgspec.Struct, frozen=True, kw_only=True):
    """What was proven of what was chosen for the pick, in the model's terms."""

    combinations: int
    """How many forms of all layers together are as fast."""
    choices: int
    """Forms that none beats, over all layers."""
    largest: float
    """Share of a resource."""
    bound: float
    """No combination has its largest share below it."""
    gap: float
    rest: float
    """Sum of all shares."""
    rest_bound: float
    """No combination with about the least largest share has a sum below it."""
    more_bytes: int = 0
    """Those that a sample sends for tables on the host: no cut of fewer lets a design fit, or come as near."""


class FamilyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A package in a structure."""

    package: str
    structure: str
    weights: str = ""
    """Where they may be: ``memories``, or ``any`` for the circuit as well; empty of an engine."""
    requantiser: str
    tried: int
    """Designs solved for; 0 of a family that can't be built."""
    why: str
    """What it lacks; empty for the pick's."""
    front: tuple[DesignRow, ...] = ()
    """Its designs that no other of it beats, the fastest first."""


class SearchReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    limits: SearchLimits
    there: dict[str, int]
    """What the device has, by resource."""
    model: str
    """How the model of the device was obtained."""
    pick: DesignRow | None
    """None if nothing keeps all limits."""
    digest: str
    """Digest of the pick's package, or of the nearest design's."""
    layers: tuple[LayerRow, ...]
    """Units of the pick, or of the nearest design."""
    proof: FoldingProof | None
    front: tuple[DesignRow, ...]
    """Designs that no other beats in rate, latency, share, loss and bytes from the host, the fastest first."""
    families: tuple[FamilyRow, ...]
    nearest: DesignRow | None
    """The design that misses the limits least, if there is no pick."""
    misses: tuple[str, ...]
    """By how much it misses which limit."""
    notes: tuple[str, ...] = ()
    command: str = ""
    """That writes the pick, or the nearest design."""
    design: str = ""
    """Digest of what it writes; empty of an engine."""
    forms: tuple[LayerForm, ...] = ()
    """Where weights may be, by layer."""
    tables: tuple[HostedTable, ...] = ()
    """Tables of embeddings."""
    activity: DesignActivity | None = None
    """Changes of bits that were counted in just this design; None where they were not."""
    format: int = FORMAT

    @property
    def shown(self) -> DesignRow | None:
        """The pick, or the nearest design."""
        return self.pick or self.nearest


class CalibratedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A synthesised design, and what the model says of it."""

    name: str
    luts: tuple[int, float]
    """Found by the tools, and by the model; so are the others."""
    flip_flops: tuple[int, float]
    dsps: tuple[int, int]
    block_rams: tuple[int, int]
    clock_mhz: tuple[float, float] | None
    """None where it was synthesised only."""


class CalibrationReport(msgspec.Struct, frozen=True, kw_only=True):
    """How far a model is from what it was fitted to."""

    obtained: str
    rows: tuple[CalibratedRow, ...]
