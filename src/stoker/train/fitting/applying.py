# pyright: reportUnknownMemberType=false
"""A plan that makes a program fit, carried out on its model and its optimizers: undone by one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from stoker.core.patching import Patches
from stoker.records.fitting import FitPlan, MeasureKind
from stoker.train.fitting.recomputing import recompute
from stoker.train.program.models import ModelWatch

Paths = Callable[[nn.Module], Iterable[tuple[str, nn.Module]]]
"""Modules of a model by the paths that a plan names them by."""


class AppliedPlan:
    """What is in force of a plan in one process, from :meth:`install` to :meth:`remove`.

    Args:
        plan: that fits.
        paths: of the modules of a model.
        begun: called with the model, before the first forward pass under the plan.
    """

    def __init__(self, plan: FitPlan, paths: Paths, begun: Callable[[nn.Module], object] = lambda model: None) -> None:
        self.plan = plan
        self._paths, self._begun = paths, begun
        self._watch = ModelWatch(self._found)
        self._patches = Patches("the fit of a program")
        self.model: nn.Module | None = None
        """The program's model, once it is known."""
        self.applied: list[MeasureKind] = []
        """Kinds of measures that are in force."""
        self.left: list[str] = []
        """What could not be applied, as sentences without their full stops."""

    def install(self) -> None:
        """Waits for the model from now on."""
        self._watch.install()

    def remove(self) -> None:
        """Takes back all changes."""
        self._watch.remove()
        self._patches.restore()

    def _found(self, root: nn.Module) -> bool:
        if not is_model(root, self.plan):
            return False
        self.model = root
        modules = dict(self._paths(root))
        for measure in self.plan.measures:
            if measure.kind != "recompute":
                continue
            for path in measure.paths:
                try:
                    recompute(modules[path], measure.keeps, self._patches)
                except (KeyError, ValueError, TypeError) as error:
                    self.left.append(f"`{path}` is not recomputed: {error}")
            self._note(measure.kind)
        self._begun(root)
        return True

    def _note(self, kind: MeasureKind) -> None:
        if kind not in self.applied:
            self.applied.append(kind)


def is_model(root: nn.Module, plan: FitPlan) -> bool:
    """Whether a module is the one that was traced, as far as its class and its size tell."""
    if type(root).__qualname__ != plan.model:
        return False
    return sum(parameter.numel() for parameter in root.parameters()) == plan.num_parameters
