"""How the gradients of a program are exchanged, layer by layer: plain records, made by ``perf`` and shown by ``ui``.

Bytes are those that one rank sends in a step. Seconds of a layer are of its exchange and of the computation it adds, as
if nothing overlapped; those of a step are with overlap.
"""

from __future__ import annotations

import msgspec

from stoker.records.plan import Span

POWER_RANK = 4
"""Rank of PowerSGD's factors, as its authors have it for language models (arXiv 1905.13727, recalled); torch's hook has
1 by default."""
LOSSY = ("half", "power")
"""Methods whose sums are not exact, so that losses differ from those of plain DDP."""
SPLITS = ("column", "row", "table")
"""Methods that split a layer's weights over the ranks, and exchange activations."""


class RejectedMethod(msgspec.Struct, frozen=True, kw_only=True):
    """What a layer could have been exchanged by."""

    method: str
    bytes: float
    seconds: Span
    reason: str
    """Why it is not, as a part of a sentence."""


class ExchangedLayer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer that has gradients."""

    module: str
    """Its path; empty for weights outside of modules."""
    shape: tuple[int, ...]
    """Width of its input and output, or rows and width of a table; empty for others."""
    rows: int
    """Rows of its input in a rank's batch, or rows that a rank looks up; 0 where that is not known."""
    gradient_bytes: float
    method: str
    bytes: float
    seconds: Span
    memory_bytes: float
    """What it holds of other ranks until the backward pass is over."""
    why_not: str
    """Why its gradient has no smaller form; empty if it has one."""
    rejected: list[RejectedMethod]


class ExchangedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step on every rank."""

    step_s: Span
    bytes: float
    exposed_s: float
    """By how much the exchange alone makes it longer."""
    hidden_s: float
    """Exchange that computation hides."""
    work_s: float
    """Computation that the plan adds."""


class ExchangeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to "how should this program exchange its gradients?"."""

    name: str
    ranks: int
    hosts: int
    rate_bytes_per_s: float
    """Rate of the link between hosts, as stated."""
    latency_s: float
    device: str
    """What a rank computes on."""
    backend: str
    allowed: list[str]
    """What may be done beyond exact methods."""
    basis: str
    """Where times of the exchange come from."""
    tier: str
    """How far the times of the computation are backed by measurements."""
    share: float
    """How often a measured computation should lie inside its interval."""
    before: ExchangedStep
    """With the backend's all-reduce alone, as torch has it."""
    after: ExchangedStep
    """As planned."""
    memory_bytes: float
    """What gathered factors and rows take on a rank."""
    digest: str
    """Hash of the methods of all layers: the same on all ranks that decide alike."""
    layers: list[ExchangedLayer]
    """In the order of the forward pass."""
    notes: list[str]
    """What was assumed, as sentences without their full stops."""


class MeasuredLayer(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank saw of a layer in steps of its own program."""

    module: str
    weight: str
    """Name of the parameter that is a product or a table; empty for layers that are neither."""
    bytes: float
    """Size of its gradients as they are exchanged."""
    product_bytes: float = 0.0
    """How much of that is one product."""
    width_in: int = 0
    width_out: int = 0
    rows: int = 0
    """Most rows of a product, or of a table that are not zero, in a step."""
    table_rows: int = 0
    """Rows of its table; 0 for others."""
    factor_type: str = "float32"
    """What its factors are computed in."""
    backward_s: float = 0.0
    """From the gradient before it to its own."""
    why_not: str = ""
    """Why its gradient is neither, as a part of a sentence."""
    splits: list[str] = []
    """Ways in which its weights may be split over the ranks."""
    unsplit: str = ""
    """Why in no other one, as a part of a sentence; empty where splits were not asked for."""
    lookups: int = 0
    """Most rows of its table that a rank asks for in a step, the same one counted again; 0 where that was not seen."""
    fed_by: str = ""
    """The layer whose split outputs could be its split inputs, with nothing exchanged in between; empty without one."""


class ProbedLinks(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe found of the links between ranks, in the ring that their sums would go by; the same on all ranks."""

    order: list[int]
    """Ranks by their place in the ring."""
    sums: list[tuple[float, float]]
    """Bytes of sums by the ring, and their seconds."""
    latencies_s: list[float]
    """From each place to the next."""
    rates: list[float]
    """Bytes/s from each place to the next, all at once."""
    islands: list[list[int]]
    """Ranks that are close to each other."""
    block_bytes: int
    """What is sent on as soon as it is there."""
    took_s: float


class MeasuredExchange(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank measured before a plan: its steps, its buckets, its products."""

    name: str
    rank: int
    ranks: int
    backend: str
    device: str
    step_s: float
    """From gradients to gradients, median."""
    computed_s: float = 0.0
    """The step without the wait for sums: from the end of the last one to the last gradients; 0 where not known."""
    layers: list[MeasuredLayer]
    """In the order of the forward pass."""
    sums: list[tuple[float, float]]
    """Bytes of all-reduces, several that overlap as one, and the shortest seconds that so many took."""
    products: list[tuple[int, int, int, float]]
    """Sizes m, n, k of products, and their seconds while all ranks multiply."""
    byte_s: float
    """Seconds to read or write a byte of memory."""
    memory_bytes: float
    """What factors and rows of all ranks may take."""
    links: ProbedLinks | None = None
    """What a probe found; None without one."""


class LayerMethod(msgspec.Struct, frozen=True, kw_only=True):
    """How one layer leaves the backend's all-reduce."""

    module: str
    weight: str
    method: str
    rows: int
    """Rows that every rank sends in a step; more of them in one step send the layer by all-reduce in that step."""
    factor_type: str = "float32"


class AgreedExchange(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks do from one step on."""

    methods: list[LayerMethod]
    """Layers that are not named stay with the backend's all-reduce."""
    report: ExchangeReport | None = None
    """The plan with its prices; None where the program named the methods."""
    note: str = ""
    """Why nothing is changed, as a sentence without its full stop."""


class LayerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How often a layer went its planned way."""

    weight: str
    method: str
    steps: int
    """Steps in which it did."""
    doubts: dict[str, int]
    """Steps in which it went by all-reduce, by reason."""
    left: str
    """Why it left the plan for good; empty if it did not."""


class SplitRun(msgspec.Struct, frozen=True, kw_only=True):
    """What came of splitting layers of a running program: steps before and after, since a split can't take turns."""

    layers: dict[str, str]
    """Methods by module."""
    step: int
    """Number of the exchange from which on they were split; 0 if they were not."""
    plain_step_s: float
    """Median of the steps before."""
    split_step_s: float
    """Median of the steps after; 0 if there were none."""
    predicted_step_s: float
    """What the plan predicted for these; 0 where it had other methods as well, which are tried later."""
    plain_bytes: float
    """That a rank sent in a step before, of gradients."""
    split_bytes: float
    """And after, with activations; 0 if there was no step."""
    predicted_bytes: float
    gain: float | None
    """Share of a step's time that was saved; None if that was not known yet."""
    kept: bool
    why: str
    """Why they are whole again, as a part of a sentence; empty while they are split."""


class ExchangeRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's replicas chose and measured, as rank 0 saw it."""

    name: str
    ranks: int
    agreed: AgreedExchange
    step: int
    """Number of the exchange from which on the plan held."""
    steps: int
    """Exchanges until the end."""
    gain: float | None
    """Share of a step's time that the trial found saved; None if there was none, or it did not end."""
    kept: bool
    plain_step_s: float
    """Median of the steps before the plan."""
    planned_step_s: float
    """Median of the steps with it; 0 if there were none."""
    plain_bytes: float
    """That a rank sent of gradients in a step before the plan."""
    planned_bytes: float
    """The same, of the last step with it."""
    repaired: int
    """How often ranks' weights differed and took rank 0's."""
    counts: list[LayerCounts]
    notes: list[str]
    splits: list[SplitRun] = []
    """Splits that were carried out, in their order."""


class ExchangeRuns(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run: one for each module that was replicated."""

    format: int = 1
    replicas: list[ExchangeRun] = []
    notes: list[str] = []
    """Why modules of the program are not among them, as sentences without their full stops."""
