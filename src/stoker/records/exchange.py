"""How the gradients of a program are exchanged, layer by layer: plain records, made by ``perf`` and shown by ``ui``.

Bytes are those that one rank sends in a step. Seconds of a layer are of its exchange and of the computation it adds, as
if nothing overlapped; those of a step are with overlap.
"""

from __future__ import annotations

import msgspec

from stoker.records.plan import Span


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
