# pyright: reportUnknownMemberType=false
"""A plan that makes a program fit, carried out on its model and its optimizers: undone by one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from stoker.core.patching import Patches
from stoker.records.fitting import FitMeasure, FitPlan, MeasureKind
from stoker.train.fitting.chunking import cut
from stoker.train.fitting.optimizing import OneByOne, UsedUp, optimizers_of
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
        self.left: dict[str, str] = {}
        """What could not be applied, by the path of a module or the kind of a measure, and why."""
        self._closers: list[Callable[[], None]] = []

    def install(self) -> None:
        """Waits for the model from now on."""
        self._watch.install()

    def remove(self) -> None:
        """Takes back all changes."""
        self._watch.remove()
        while self._closers:
            self._closers.pop()()
        self._patches.restore()

    def _found(self, root: nn.Module) -> bool:
        if not is_model(root, self.plan):
            return False
        self.apply(root)
        return True

    def apply(self, root: nn.Module) -> None:
        """Applies it to a model now."""
        self.model = root
        for measure in self.plan.measures:
            if self._apply(measure, root) and measure.kind not in self.applied:
                self.applied.append(measure.kind)
        self._begun(root)

    def _apply(self, measure: FitMeasure, root: nn.Module) -> bool:
        """Whether a measure is in force now; ranks have their own way."""
        if measure.kind == "recompute":
            modules = dict(self._paths(root))
            for path in measure.paths:
                self._try(path, lambda path=path: recompute(modules[path], measure.keeps, self._patches))
            return any(path not in self.left for path in measure.paths)
        if measure.kind == "chunks":
            return self._try("chunks", lambda: cut(root, measure.number, self._patches))
        if measure.kind in ("one_by_one", "used_up"):
            found = optimizers_of(root)
            if not found:
                self.left[measure.kind] = "no optimizer of the model was there before its first forward pass"
                return False
            make = OneByOne if measure.kind == "one_by_one" else UsedUp
            self._closers += [make(each).close for each in found]
            return True
        return measure.kind == "expandable"

    def _try(self, name: str, act: Callable[[], None]) -> bool:
        try:
            act()
        except (KeyError, ValueError, TypeError) as error:
            self.left[name] = str(error)
            return False
        return True


def is_model(root: nn.Module, plan: FitPlan) -> bool:
    """Whether a module is the one that was traced, as far as its class and its size tell."""
    if type(root).__qualname__ != plan.model:
        return False
    return sum(parameter.numel() for parameter in root.parameters()) == plan.num_parameters
