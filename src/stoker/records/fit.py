"""How a program is made to fit the memory it has: what was chosen, what it was chosen from, what came of it."""

from __future__ import annotations

import msgspec


class FitCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One way to lower the peak, alone or with others."""

    name: str
    """Such as ``recompute 14 of 24 blocks``."""
    peak_bytes: int
    """Predicted with it."""
    step_frac: float | None
    """Time that it adds, as a share of the step's; None if nothing predicts it."""
    losses: str
    """``equal`` bit for bit, or how far they may differ."""
    refused: str = ""
    """Why it was not chosen; empty for the one that was."""


class FitPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to a running program, without any change to what it computes.

    A plan that changes nothing is one of a program that fits as it is.
    """

    budget_bytes: int
    plain_bytes: int
    """Predicted peak of the program as it is."""
    peak_bytes: int
    """Predicted peak with the plan: of the program traced again in this form."""
    step_frac: float | None
    """Predicted time that the plan adds, as a share of the step's."""
    recomputed: tuple[str, ...] = ()
    """Paths of modules whose forward pass is repeated in the backward pass, as `named_modules` of the model gives."""
    one_by_one: bool = False
    """Whether optimizers update one parameter after another (``foreach=False``)."""
    used_up: bool = False
    """Whether a gradient is applied and freed as soon as the backward pass has made it."""
    chunks: int = 1
    """Parts into which the samples of a batch are cut; each part's forward pass is repeated in its backward pass."""
    expandable: bool = False
    """Whether CUDA's allocator gets expandable segments."""
    candidates: tuple[FitCandidate, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether anything is done."""
        return bool(self.recomputed or self.one_by_one or self.used_up or self.chunks > 1 or self.expandable)
