"""What quantising a model came to: plain records, made by ``deploy``, kept in its package and shown by ``ui``."""

from __future__ import annotations

import msgspec

FORMAT = 1


class OutputAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """One of several outputs."""

    name: str
    flips: int | None
    """Samples whose largest number is another one; None where the output is no scores."""
    error: float
    """As of :class:`PairedAccuracy`."""


class PairedAccuracy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whole numbers against real ones on the same samples, over all outputs of the model."""

    samples: int
    flips: int | None
    """Samples whose largest number is another one, ties to the first, in any output of scores; None without such."""
    flips_low: float | None
    flips_high: float | None
    """Ends of the interval of the share of flips (Wilson, 95 %)."""
    float_right: int | None
    """Samples that the model on real numbers gets right, by its first output; None without labels."""
    right: int | None
    right_low: float | None
    right_high: float | None
    """Ends of the interval of the accuracy on whole numbers (Wilson, 95 %)."""
    error: float
    """Root mean square of an output's difference, over its standard deviation on real numbers; the largest of all."""
    outputs: list[OutputAccuracy] = []
    """Each output, where there are several; left out of a file where there is one."""


class LayerError(msgspec.Struct, frozen=True, kw_only=True):
    """How far a result is from that on real numbers, with everything before it on whole numbers too."""

    name: str
    layer: str
    """Path of the module."""
    error: float
    """Root mean square of the difference, over that of the result."""


class TriedRule(msgspec.Struct, frozen=True, kw_only=True):
    """One way to choose ranges and to round weights, measured on the search split."""

    rule: str
    corrected: bool
    """Whether biases make up for rounded weights."""
    error: float
    rounding: str = "nearest"
    """How weights were rounded: ``nearest``, or ``compensated`` for the least error of what a layer returns."""


class NarrowedWidth(msgspec.Struct, frozen=True, kw_only=True):
    """Bits of one layer's weights or result."""

    layer: str
    """Name of the operation."""
    part: str
    """``weights`` or ``activations``."""
    bits: int


class MixedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A design on the way from the widest to the narrowest, measured whole."""

    narrowed: NarrowedWidth | None
    """What it has narrower than the design before it; None of the first."""
    cost: float
    search: float
    """Loss on the search split: the share of changed decisions, or the error of outputs that are no scores."""
    accept: float
    """Loss on the accept split."""


class MixedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How mixed widths were chosen."""

    saved: str
    """What the cost is of: ``memory`` (bits of weights) or ``multipliers`` (bit operations of a sample)."""
    most: float
    """Loss that was allowed."""
    steps: list[MixedStep]
    taken: int
    """Place of the design that was taken: the last before one that the accept split refused."""
    widths: list[NarrowedWidth]
    """Those of the design taken that differ from the widest."""


class QuantisationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    model: str
    calibrated_on: int
    """Samples that ranges come from."""
    tried: list[TriedRule]
    rule: str
    """That was taken."""
    corrected: bool
    search: PairedAccuracy
    """On the samples that chose the rule."""
    accept: PairedAccuracy
    """On samples that chose nothing."""
    layers: list[LayerError]
    """In the graph's order, measured on accepted samples."""
    parameters: int
    weight_bits: int
    """Bits of all weights together."""
    widest_accumulator_bits: int
    operations: int
    mixed: MixedRecord | None = None
    """How widths by layer were chosen, where they were."""
    rounding: str = "nearest"
    """The way to round weights that was taken."""
    format: int = FORMAT

    @property
    def worst(self) -> LayerError | None:
        """The layer that is farthest off."""
        return max(self.layers, key=lambda each: each.error, default=None)
