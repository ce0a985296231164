"""The design that takes the least share of a part, solved exactly as mixed-integer programs, one after another.

One form of each layer is taken, and each table is on the chip or on the host. What a design takes of each kind of
resource is a sum over layers and over streams that are resized, so the largest of the shares is the least number above
all of them: a linear program but for the whole numbers, which HiGHS (Huangfu, Hall, 2018) solves with a proof. What is
wanted has an order: all tables on the chip, or the fewest bytes from the host with which the design fits, or comes
nearest to it; then the least largest share; then, of designs within :data:`BAND` of that, the least sum of all shares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stoker.core.extras import require
from stoker.deploy.rtl.folding import Folding
from stoker.deploy.search.model import KINDS, DeviceDemand, ResourceModel
from stoker.deploy.search.space import ChoiceSpace, FoldingChoice, resized
from stoker.deploy.tools.devices import Fpga

BAND = 1e-3
"""How far, relatively, the largest share may be above the least one for the sake of the others, where it still fits."""
_UNLIMITED = 1e4
"""Share of a resource that a part does not have, for each one that is taken: never worth it, and never infinite."""
_ROUNDING = 1e-6
"""What a program's solver takes for equal."""

_T = TypeVar("_T")

Order = tuple[float, float]
"""The largest share, then the sum of all: less is better, in this order, and largest shares within :data:`BAND` of the
least are as good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldingCertificate:
    """What was proven.

    Attributes:
        combinations: of forms as fast as was asked, with the weights in memories and in the circuit.
        choices: that none beats, over all layers.
        largest: share of the solution.
        bound: no combination has its largest share below this.
        rest: the sum of all shares of the solution.
        rest_bound: no combination whose largest share is within :data:`BAND` of the least, and that fits where one
            does, has a sum below this.
        more_bytes: of a sample for tables on the host; no cut of fewer bytes lets a design fit, or come as near where
            none does.
    """

    combinations: int
    choices: int
    largest: float
    bound: float
    rest: float
    rest_bound: float
    more_bytes: int = 0

    @property
    def gap(self) -> float:
        """How far the largest share may be above the least there is, relatively."""
        return max(0.0, self.largest - self.bound) / max(self.largest, 1e-12)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenDesign:
    """What was chosen.

    Attributes:
        layers: form of each layer.
        host_tables: tables on the host.
        demand: of all of it.
        certificate: of the choice.
    """

    layers: Mapping[str, FoldingChoice]
    host_tables: tuple[str, ...]
    demand: DeviceDemand
    certificate: FoldingCertificate

    @property
    def foldings(self) -> dict[str, Folding]:
        """What each layer computes in a cycle."""
        return {name: each.folding for name, each in self.layers.items()}

    @property
    def constant(self) -> tuple[str, ...]:
        """Layers whose weights are part of the circuit."""
        return tuple(name for name, each in self.layers.items() if each.constant)

    @property
    def compared(self) -> tuple[str, ...]:
        """Layers with an array whose requantisers compare with thresholds."""
        return tuple(name for name, each in self.layers.items() if each.compared)


def share_of(taken: float, there: int) -> float:
    """The share of a resource that is taken."""
    return taken / there if there else taken * _UNLIMITED


def shares(demand: DeviceDemand, part: Fpga) -> dict[str, float]:
    """The share of each kind that is taken."""
    return {kind: share_of(demand.of(kind), getattr(part, kind)) for kind in KINDS}


def order_of(demand: DeviceDemand, part: Fpga) -> Order:
    """What is made least."""
    found = shares(demand, part).values()
    return max(found), sum(found)


def nearly_least(found: Iterable[_T], figure: Callable[[_T], float]) -> list[_T]:
    """Those whose figure is within :data:`BAND` of the least one: a part of what is there, or allowed.

    Where the least is no more than that, so are all.
    """
    kept = list(found)
    least = min(map(figure, kept))
    most = least * (1 + BAND) if least > 1 else min(least * (1 + BAND), 1.0)
    return [each for each in kept if figure(each) <= most]


def first_in_order(found: Iterable[_T], order: Callable[[_T], Order]) -> _T:
    """The one that comes first, as a program takes it; of equal ones the first given."""
    return min(nearly_least(found, lambda each: order(each)[0]), key=lambda each: order(each)[::-1])


def demand_of(
    space: ChoiceSpace, chosen: Mapping[str, int], model: ResourceModel, host_tables: Collection[str] = ()
) -> DeviceDemand:  # fmt: skip
    """What a design takes.

    Args:
        space: that is chosen from.
        chosen: the number of each layer's choice.
        model: of the part's family.
        host_tables: tables on the host.
    """
    found = space.rest
    for name, choices in space.layers.items():
        found += choices[chosen[name]].demand
    for meeting in space.meetings:
        given, wanted = (
            end.lanes(space.layers[end.layer][chosen[end.layer]]) if end.layer else end.fixed
            for end in (meeting.given, meeting.wanted)
        )
        found += resized(meeting, given, wanted, model)
    for table in space.tables:
        if table.layer in host_tables:
            found -= table.saved
    return found


def least_share(space: ChoiceSpace, part: Fpga, model: ResourceModel, room: float = 1.0) -> ChosenDesign:
    """The design that is first in the order, and the proof.

    Args:
        space: that is chosen from.
        part: on which.
        model: of what it takes.
        room: share of each resource within which a design fits.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    found = _Program(space, part, model, room).solved()
    demand = demand_of(space, found.chosen, model, found.host_tables)
    largest, rest = order_of(demand, part)
    certificate = FoldingCertificate(
        combinations=space.combinations, choices=sum(map(len, space.layers.values())), largest=largest,
        bound=found.bound, rest=rest, rest_bound=found.rest_bound,
        more_bytes=sum(table.more_bytes for table in space.tables if table.layer in found.host_tables),
    )  # fmt: skip
    layers = {name: space.layers[name][at] for name, at in found.chosen.items()}
    return ChosenDesign(layers=layers, host_tables=found.host_tables, demand=demand, certificate=certificate)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solution:
    """The number of each layer's choice, tables on the host, and bounds of both shares."""

    chosen: Mapping[str, int]
    host_tables: tuple[str, ...]
    bound: float
    rest_bound: float


def _allowed(least: float, room: float) -> float:
    """The largest share that is as good as the least one: within :data:`BAND`, and not over a part that one fits."""
    near = least * (1 + BAND) + _ROUNDING
    return near if least > room + _ROUNDING else max(least, min(near, room - _ROUNDING))


def _bound(solved: Any) -> float:
    """What no solution is below; a program without whole numbers has its solution for it."""
    return float(solved.fun if solved.mip_dual_bound is None else solved.mip_dual_bound)


class _Program:
    """Variables: the largest share; one of each choice, of each table on the host, of each pair of widths that meet.

    A pair's variable is at least the sum of both ends' choices less one, and costs something: so it is that, and needs
    not be whole.
    """

    def __init__(self, space: ChoiceSpace, part: Fpga, model: ResourceModel, room: float) -> None:
        self.space, self.part, self.model, self.room = space, part, model, room
        self.first: dict[str, int] = {}
        count = 1
        for name, choices in space.layers.items():
            self.first[name] = count
            count += len(choices)
        self.tables = count
        self.whole = count + len(space.tables)
        self.taken: list[DeviceDemand] = [DeviceDemand()] * count
        for name, choices in space.layers.items():
            for at, choice in enumerate(choices):
                self.taken[self.first[name] + at] = choice.demand
        self.taken += [DeviceDemand() - table.saved for table in space.tables]
        self.rows: list[tuple[dict[int, float], float, float]] = [
            ({self.first[name] + at: 1.0 for at in range(len(choices))}, 1.0, 1.0)
            for name, choices in space.layers.items()
        ]
        self._meet()

    def _meet(self) -> None:
        for meeting in self.space.meetings:
            given, wanted = (self._ends(end.layer, end) for end in (meeting.given, meeting.wanted))
            for before, left in given.items():
                for after, right in wanted.items():
                    cost = resized(meeting, before, after, self.model)
                    if cost == DeviceDemand():
                        continue
                    pair = len(self.taken)
                    self.taken.append(cost)
                    row: dict[int, float] = defaultdict(float, {pair: -1.0})
                    for at in (*left, *right):
                        row[at] += 1.0
                    self.rows.append((row, -np.inf, float(bool(left)) + float(bool(right)) - 1.0))

    def _ends(self, layer: str, end: Any) -> dict[int, list[int]]:
        """Variables of an end's choices by their width; a fixed end has one width and no variable."""
        if not layer:
            return {end.fixed: []}
        found: dict[int, list[int]] = defaultdict(list)
        for at, choice in enumerate(self.space.layers[layer]):
            found[end.lanes(choice)].append(self.first[layer] + at)
        return found

    def solved(self) -> _Solution:
        """Solves one program for each part of the order."""
        self._arrange()
        upper = np.ones(len(self.taken))
        upper[0] = np.inf
        upper[self.tables : self.whole] = 0
        largest = np.zeros(len(self.taken))
        largest[0] = 1.0
        found = self._solve(largest, upper)
        if self.space.tables and found.fun > self.room:
            upper = self._fewest_bytes(largest, upper)
            found = self._solve(largest, upper)
        assert found.x is not None, found.message  # each layer has a choice, and shares have no limit
        bound = _bound(found)
        upper[0] = _allowed(found.x[0], self.room)
        least = self._solve(self.sums, upper)
        assert least.x is not None, least.message  # the solution before is one
        chosen = {
            name: int(np.argmax(least.x[first : first + len(self.space.layers[name])]))
            for name, first in self.first.items()
        }
        hosted = least.x[self.tables : self.whole]
        away = tuple(table.layer for table, at in zip(self.space.tables, hosted, strict=True) if at > 1 / 2)
        rest = sum(shares(self.space.rest, self.part).values())
        return _Solution(
            chosen=chosen, host_tables=away, bound=bound, rest_bound=_bound(least) + rest
        )  # fmt: skip

    def _fewest_bytes(self, largest: NDArray[np.float64], upper: NDArray[np.float64]) -> NDArray[np.float64]:
        """Bounds under which as few bytes come from the host as let the design fit, or come nearest to it."""
        upper = upper.copy()
        upper[self.tables : self.whole] = 1
        bytes_more = np.zeros(len(self.taken))
        bytes_more[self.tables : self.whole] = [table.more_bytes for table in self.space.tables]
        near = upper.copy()
        near[0] = self.room
        found = self._solve(bytes_more, near)
        if found.x is None:
            near[0] = self._solve(largest, upper).fun + _ROUNDING
            found = self._solve(bytes_more, near)
        assert found.x is not None, found.message  # the nearest is one
        at = {int(place): float(bytes_more[place]) for place in np.flatnonzero(bytes_more)}
        self._add(at, -np.inf, round(found.fun))
        return upper

    def _arrange(self) -> None:
        """Rows of the program: each resource within the largest share, then those of choices and pairs."""
        per_kind = np.array(
            [[share_of(each.of(kind), getattr(self.part, kind)) for each in self.taken] for kind in KINDS]
        )
        self.sums = per_kind.sum(axis=0)
        rest = shares(self.space.rest, self.part)
        self.matrix, self.low, self.high = list[Any](), list[float](), list[float]()
        for kind, row in zip(KINDS, per_kind, strict=True):
            row[0] = -1.0
            self.matrix.append(row)
            self.low.append(-np.inf)
            self.high.append(-rest[kind])
        for terms, least, most in self.rows:
            self._add(terms, least, most)

    def _add(self, terms: Mapping[int, float], least: float, most: float) -> None:
        row = np.zeros(len(self.taken))
        row[list(terms)] = list(terms.values())
        self.matrix.append(row)
        self.low.append(least)
        self.high.append(most)

    def _solve(self, cost: NDArray[np.float64], upper: NDArray[np.float64]) -> Any:
        """A solution of scipy's, without an ``x`` where there is none."""
        optimize: Any = require("scipy.optimize", extra="plan")
        sparse: Any = require("scipy.sparse", extra="plan")
        whole = np.zeros(len(self.taken))
        whole[1 : self.whole] = 1
        rows = optimize.LinearConstraint(sparse.csr_matrix(np.array(self.matrix)), self.low, self.high)
        return optimize.milp(
            cost, integrality=whole, bounds=optimize.Bounds(0, upper), constraints=rows,
            options={"mip_rel_gap": _ROUNDING},
        )  # fmt: skip
