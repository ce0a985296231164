"""How a program is made to fit the memory it has: what was chosen, what it was chosen from, what came of it.

Bytes are of one process: tensors, what the allocator reserves beyond them, and the context of the device. A plan is
made by ``perf``, carried out by ``train``, handed over by ``run`` and shown by ``ui``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MeasureKind = Literal[
    "expandable", "one_by_one", "used_up", "recompute", "offload", "states_away", "chunks", "zero1",
    "fsdp2", "stages",
]  # fmt: skip
"""What can be done. ``expandable``: growing segments of CUDA's allocator. ``one_by_one``: optimizers update one
parameter after another. ``used_up``: a gradient is applied and freed as soon as the backward pass has made it.
``recompute``: forward passes of units are repeated in the backward pass. ``offload``: what units save for their
backward pass lies in host memory in between. ``states_away``: states of the optimizer lie in host memory between
updates, which are made one parameter after another. ``chunks``: the model is called on parts of the samples, each
repeated in its backward pass. ``zero1``: each rank keeps its share of optimizer states.
``fsdp2``: of weights and gradients as well. ``stages``: each rank has some layers of the model, which the batches of
all ranks go through."""
Keeps = Literal["nothing", "products"]
"""What a recomputed unit keeps besides its inputs: nothing, or results of matrix products and convolutions."""
LEAST_AWAY_BYTES = 16 * 1024
"""Smaller tensors stay on the device: their copies take as long as larger ones (assumed)."""
EQUAL = "equal"
"""The promise of losses and weights that are equal bit for bit."""


class CallPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An argument of a model's call, or a container of some: of tensors, what can be known without their values."""

    kind: Literal["tensor", "tuple", "list", "dict", "constant"]
    parts: tuple[CallPart, ...] = ()
    """What a container has, in its order."""
    names: tuple[str, ...] = ()
    """Keys of a dict, in the order of its parts."""
    value: int | float | bool | str | None = None
    """What a constant is."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    """As torch writes it, such as ``torch.float32``."""
    needs: bool = False
    """Whether a tensor wants a gradient."""


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """How a program calls its model for training, of which shapes count alone."""

    args: tuple[CallPart, ...] = ()
    kwargs: dict[str, CallPart] = {}
    autocast: str = ""
    """Precision of automatic mixed precision around it, as torch writes it; empty for none."""


class FitMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that lowers the peak and changes nothing of what is computed."""

    kind: MeasureKind
    paths: tuple[str, ...] = ()
    """Modules it is applied to, as ``named_modules`` of the program's model names them; empty for all of it. Of
    ``stages``: those with which the second and further ones begin."""
    keeps: Keeps = "nothing"
    kept: tuple[str, ...] = ()
    """Those of the modules whose weights stay whole from the forward pass to the backward pass (``fsdp2``)."""
    number: int = 0
    """Parts of a batch (``chunks``) or ranks (``zero1``, ``fsdp2``, ``stages``); 0 for others."""
    peaks: tuple[int, ...] = ()
    """Predicted bytes of each rank, where they differ (``stages``)."""
    call: ModelCall | None = None
    """How the model is called (``stages``)."""
    saves_bytes: int = 0
    """By how much the peak falls, after the measures before it."""
    added_s: float | None = 0.0
    """Predicted seconds that it adds to a step; None if nothing predicts them."""
    promise: str = EQUAL
    """``equal`` bit for bit, or how far losses may differ, as ``within 1e-6``."""


AdviceKind = Literal["accumulate", "batch", "bf16", "zero_grad", "delete"]
"""What would change the meaning of a step, or the program's text, and so is said and never done. ``accumulate``:
gradients of smaller batches are added up. ``batch``: a smaller batch. ``bf16``: autocast around the model's call.
``zero_grad``: gradients are dropped earlier. ``delete``: a variable is deleted after its last use."""


class FitAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """A change to the program that makes it smaller, and what it then comes to under ``--fit auto``."""

    kind: AdviceKind
    line: str
    """Line of the program to change, as ``train.py:31``; empty if none is known."""
    name: str = ""
    """The variable to delete, or the line after which gradients can be dropped."""
    number: int = 0
    """Batches whose gradients are added up."""
    samples: int = 0
    """In each batch then."""
    peak_bytes: int
    """Predicted of the changed program, with measures where it needs them."""
    step_s: float | None
    """Predicted seconds of its step; None if nothing predicts them. Of a smaller batch, a step of fewer samples."""
    measures: int = 0
    """How many measures are needed besides."""


class TracedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a traced program is besides its step: by what its model is known again, and what cannot be done to it."""

    model: str = ""
    """Class of the outermost module; empty for a program without one."""
    num_parameters: int = 0
    """Elements of all its parameters."""
    kept_as_is: dict[str, str] = {}
    """Modules whose forward pass must not be repeated, and why, as a part of a sentence."""
    gradients_read: str = ""
    """Who reads gradients between the backward pass and the optimizer's step, or later; empty if nobody does."""
    not_cut: str = ""
    """Why the model cannot be called on parts of the samples; empty if it can."""
    class_stays: tuple[str, ...] = ()
    """Modules of which not even the class can be changed: nothing is done to them."""
    units: tuple[str, ...] = ()
    """Modules whose weights ranks can gather and free together, where they keep shares of them."""
    not_sharded: str = ""
    """Why ranks cannot keep shares of the weights; empty if they can, as far as a trace tells."""
    call: ModelCall | None = None
    """How a replicated model is called for training; None if that was not seen, or cannot be written down."""
    not_staged: str = ""
    """Why its layers cannot be in stages; empty if they can, as far as a trace tells."""
    compiled: bool = False
    """Whether ``torch.compile`` decides what is kept."""
    optimizers: tuple[str, ...] = ()
    """Classes of those that stepped."""
    passes_by_hand: int = 0
    """Backward passes of a step, if the program updates its weights itself; 0 where optimizers step."""
    lines: dict[str, str] = {}
    """Lines of the program that call the ``model``, ``zero_grad`` and the optimizer's ``step``, and that make the
    ``loader`` of its batches; those that were seen."""
    reads: tuple[str, ...] | None = None
    """Files that the program read, wherever they are: its own sources, settings, data; None if that is not known."""


class RejectedFit(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of measure, or a choice of several, that is not in the plan."""

    name: str
    """Such as ``recompute every block`` or ``chunks of samples``."""
    peak_bytes: int | None
    """Predicted with it and what else fits; None if it cannot be applied here."""
    step_s: float | None
    """Predicted seconds of a step with it; None if nothing predicts them."""
    reason: str
    """Why not, as a part of a sentence."""


class FitPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to a running program. A plan without measures is one of a program that fits as it is."""

    name: str
    budget_bytes: int
    device: str
    """What the budget is of: ``RTX-4090``, or ``emulated device`` for counted bytes of a program on CPUs."""
    ranks: int = 1
    model: str = ""
    """Class of the model that paths of measures are of."""
    num_parameters: int = 0
    """Elements of its parameters, by which it is known as well."""
    passes_by_hand: int = 0
    """Backward passes of a step, by which steps are counted where no optimizer makes them; 0 for others."""
    plain_bytes: int
    """Predicted peak of the program as it is."""
    plain_step_s: float | None
    """Predicted seconds of its step, of ranks with what DDP's exchange adds; None if nothing predicts them."""
    peak_bytes: int
    """Predicted peak with the plan: certified, or of the model that chose."""
    step_s: float | None
    """Predicted seconds of a step with the plan and its exchange; None if nothing predicts them."""
    measures: tuple[FitMeasure, ...] = ()
    certified: bool = False
    """Whether the program was traced again in the chosen form, and ``peak_bytes`` is of that trace."""
    lacks_bytes: int = 0
    """What the nearest miss is above the budget; 0 for a plan that fits. Nothing is applied of one that does not."""
    rejected: tuple[RejectedFit, ...] = ()
    advice: tuple[FitAdvice, ...] = ()
    """What else would make it smaller, those that fit first."""
    notes: tuple[str, ...] = ()
    """What was assumed, as sentences without their full stops."""

    @property
    def fits(self) -> bool:
        """Whether the budget is kept."""
        return self.lacks_bytes == 0

    @property
    def changes(self) -> bool:
        """Whether anything is to be done to the program."""
        return self.fits and bool(self.measures)

    def of(self, kind: MeasureKind) -> tuple[FitMeasure, ...]:
        """Measures of a kind, in their order."""
        return tuple(each for each in self.measures if each.kind == kind)


class StageFlow(msgspec.Struct, frozen=True, kw_only=True):
    """What a step of a pipeline computes and sends, from which its seconds follow once the link is known."""

    forward_s: tuple[float, ...]
    """Predicted seconds of one batch in each stage."""
    backward_s: tuple[float, ...]
    loss_s: float
    """Seconds of one batch's loss, between the two passes on its rank."""
    plain_s: float
    """Seconds of a batch's two passes in a rank that has all layers, loss and all."""
    update_s: float
    """Seconds of the optimizer where a rank updates all weights."""
    share: float
    """Largest share of the weights in a stage."""
    sends: tuple[tuple[int, int, int], ...]
    """Stage that sends, stage that receives (-1: the batch's rank, on either side), bytes of one batch; forward."""
    passes: int = 1
    """Passes in a step, each with a batch of all ranks."""


class RankedFits(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks of a program choose from once they know their links: a plan for each way to share."""

    plans: tuple[FitPlan, ...]
    """The plan of each way, which its measures tell; seconds without its exchange."""
    units: tuple[str, ...]
    """Paths of the blocks."""
    weights: tuple[int, ...]
    """Bytes of trained weights outside of blocks, then of each block."""
    forward_s: tuple[float, ...]
    """Predicted seconds of the same."""
    backward_s: tuple[float, ...]
    flow: StageFlow | None = None
    """What a pipeline computes and sends; None without one."""
    refused: tuple[RejectedFit, ...] = ()
    """Ways that cannot be taken."""


class CountedPeak(msgspec.Struct, frozen=True, array_like=True):
    """Most bytes that were alive in a step of the program."""

    step: int
    """Number of the optimizer's step that ends it, from 1."""
    bytes: int


class FitRun(msgspec.Struct, frozen=True, kw_only=True):
    """A plan and what came of it in one process."""

    plan: FitPlan
    mode: Literal["report", "auto"]
    rank: int = 0
    applied: tuple[MeasureKind, ...] = ()
    """Kinds of measures that were in force when the program ended."""
    left: tuple[str, ...] = ()
    """Measures that could not be applied or were taken back, with the reason, as sentences without their full stops."""
    counted: tuple[CountedPeak, ...] = ()
    """Peaks of the first steps: counted bytes of tensors on CPUs, or what CUDA's allocator reserved."""
    notes: tuple[str, ...] = ()

    @property
    def counted_bytes(self) -> int:
        """Most that was counted; 0 if nothing was."""
        return max((each.bytes for each in self.counted), default=0)

    @property
    def predicted_bytes(self) -> int:
        """Predicted peak of this rank, which in a pipeline is not that of others."""
        peaks = next((each.peaks for each in self.plan.measures if each.peaks), ())
        return peaks[self.rank] if self.rank < len(peaks) else self.plan.peak_bytes


class FitRuns(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run: one for each rank that had a plan."""

    format: int = 1
    runs: tuple[FitRun, ...] = ()
