# pyright: reportUnknownMemberType=false
"""A plan that makes a program fit, carried out on its model and its optimizers: undone by one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.core.patching import Patches
from stoker.records.fitting import FitMeasure, FitPlan, MeasureKind
from stoker.train.fitting.chunking import cut
from stoker.train.fitting.offloading import Offloading
from stoker.train.fitting.optimizing import OneByOne, UsedUp, optimizers_of
from stoker.train.fitting.recomputing import recompute
from stoker.train.fitting.states_away import StatesAway
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
        self._away: dict[int, StatesAway] = {}
        """By the identity of their optimizers, which they hold."""

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
        # A wrapper of data parallelism and what it holds have the same path.
        inner = dict(self._paths(root)).get("", root)
        if not is_model(inner, self.plan):
            return False
        self.apply(inner)
        return True

    def apply(self, root: nn.Module) -> None:
        """Applies it to a model now."""
        self.model = root
        # Gradients that are used up need states that are away.
        for measure in (*self.plan.of("states_away"), *(m for m in self.plan.measures if m.kind != "states_away")):
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
        if measure.kind == "offload":
            return self._offload(measure, root)
        if measure.kind == "chunks":
            return self._try("chunks", lambda: cut(root, measure.number, self._patches))
        if measure.kind in ("one_by_one", "states_away", "used_up"):
            found = optimizers_of(root)
            if not found:
                self.left[measure.kind] = "no optimizer of the model was there before its first forward pass"
                return False
            for each in found:
                self._hold_less(measure.kind, each)
            return True
        return measure.kind == "expandable"

    def _hold_less(self, kind: MeasureKind, optimizer: Optimizer) -> None:
        if kind == "one_by_one":
            self._closers.append(OneByOne(optimizer).close)
        elif kind == "states_away":
            states = StatesAway(optimizer, updates=not self.plan.of("used_up"))
            self._away[id(optimizer)] = states
            self._closers.append(states.close)
        else:
            away = self._away.get(id(optimizer))
            used = UsedUp(optimizer) if away is None else UsedUp(optimizer, away.around)
            self._closers.append(used.close)

    def _offload(self, measure: FitMeasure, root: nn.Module) -> bool:
        modules = dict(self._paths(root))
        known = [path for path in measure.paths if path in modules]
        self.left |= {path: "the model has no such module" for path in measure.paths if path not in modules}

        def leave(place: int, reason: str) -> None:
            self.left[known[place]] = reason

        Offloading([modules[path] for path in known], self._patches, leave)
        return any(path not in self.left for path in measure.paths)

    def is_away(self, tensor: Tensor) -> bool:
        """Whether a tensor that the program keeps lies in host memory now."""
        return any(each.is_away(tensor) for each in self._away.values())

    def _try(self, name: str, act: Callable[[], None]) -> bool:
        try:
            act()
        except (KeyError, ValueError, TypeError) as error:
            self.left[name] = str(error)
            return False
        return True


def is_model(root: nn.Module, plan: FitPlan) -> bool:
    """Whether a module is the one that was traced, as far as its class and its size tell."""
    # Shares of weights give a module a class over its own.
    if all(each.__qualname__ != plan.model for each in type(root).__mro__):
        return False
    return sum(parameter.numel() for parameter in root.parameters()) == plan.num_parameters
