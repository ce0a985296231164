"""The foldings of a design that take the least share of a part, solved exactly as a mixed-integer program.

One folding of each layer is taken. What a design takes of each kind of resource is a sum over layers and over streams
that are resized, so the largest of the shares is the least number above all of them: a linear program but for the whole
numbers, which HiGHS (Huangfu, Hall, 2018) solves with a proof.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.core.extras import require
from stoker.deploy.rtl.folding import Folding
from stoker.deploy.search.model import KINDS, DeviceDemand, ResourceModel
from stoker.deploy.search.space import ChoiceSpace, resized
from stoker.deploy.tools.devices import Fpga

SPREAD = 1e-3
"""Weight of the sum of all shares next to the largest: among designs with equal largest shares, the smaller one."""
_UNLIMITED = 1e4
"""Share of a resource that a part does not have, for each one that is taken: never worth it, and never infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldingCertificate:
    """What was proven.

    Attributes:
        combinations: of foldings as fast as was asked.
        choices: that none beats, over all layers.
        objective: largest share and :data:`SPREAD` of their sum, of the solution.
        bound: no combination is below this.
    """

    combinations: int
    choices: int
    objective: float
    bound: float

    @property
    def gap(self) -> float:
        """How far the solution may be above the best there is, relatively."""
        return max(0.0, self.objective - self.bound) / max(self.objective, 1e-12)


def share_of(taken: float, there: int) -> float:
    """The share of a resource that is taken."""
    return taken / there if there else taken * _UNLIMITED


def shares(demand: DeviceDemand, part: Fpga) -> dict[str, float]:
    """The share of each kind that is taken."""
    return {kind: share_of(demand.of(kind), getattr(part, kind)) for kind in KINDS}


def objective(demand: DeviceDemand, part: Fpga) -> float:
    """What is made least: the largest share, and :data:`SPREAD` of the sum."""
    found = shares(demand, part).values()
    return max(found) + SPREAD * sum(found)


def demand_of(space: ChoiceSpace, chosen: Mapping[str, int], model: ResourceModel) -> DeviceDemand:
    """What a design takes.

    Args:
        space: that is chosen from.
        chosen: the number of each layer's choice.
        model: of the part's family.
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
    return found


def least_share(space: ChoiceSpace, part: Fpga, model: ResourceModel) -> tuple[dict[str, Folding], FoldingCertificate]:
    """The foldings with the least objective, and the proof.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    program = _Program(space, part, model)
    chosen, bound = program.solved()
    demand = demand_of(space, chosen, model)
    certificate = FoldingCertificate(
        combinations=space.combinations, choices=sum(map(len, space.layers.values())),
        objective=objective(demand, part), bound=bound,
    )  # fmt: skip
    return {name: space.layers[name][at].folding for name, at in chosen.items()}, certificate


class _Program:
    """Variables: the largest share; one of each choice; one of each pair of widths that meet.

    A pair's variable is at least the sum of both ends' choices less one, and costs something: so it is that, and needs
    not be whole.
    """

    def __init__(self, space: ChoiceSpace, part: Fpga, model: ResourceModel) -> None:
        self.space, self.part, self.model = space, part, model
        self.first: dict[str, int] = {}
        count = 1
        for name, choices in space.layers.items():
            self.first[name] = count
            count += len(choices)
        self.whole = count
        self.taken: list[DeviceDemand] = [DeviceDemand()] * count
        for name, choices in space.layers.items():
            for at, choice in enumerate(choices):
                self.taken[self.first[name] + at] = choice.demand
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

    def solved(self) -> tuple[dict[str, int], float]:
        """The number of each layer's choice, and the bound of the objective."""
        optimize: Any = require("scipy.optimize", extra="plan")
        sparse: Any = require("scipy.sparse", extra="plan")
        count = len(self.taken)
        per_kind = np.array(
            [[share_of(each.of(kind), getattr(self.part, kind)) for each in self.taken] for kind in KINDS]
        )
        rest = shares(self.space.rest, self.part)
        cost = SPREAD * per_kind.sum(axis=0)
        cost[0] = 1.0
        rows, low, high = list[Any](), list[float](), list[float]()
        for kind, row in zip(KINDS, per_kind, strict=True):
            row[0] = -1.0
            rows.append(row)
            low.append(-np.inf)
            high.append(-rest[kind])
        for terms, least, most in self.rows:
            row = np.zeros(count)
            row[list(terms)] = list(terms.values())
            rows.append(row)
            low.append(least)
            high.append(most)
        whole = np.zeros(count)
        whole[1 : self.whole] = 1
        upper = np.ones(count)
        upper[0] = np.inf
        found = optimize.milp(
            cost, integrality=whole, bounds=optimize.Bounds(0, upper), options={"mip_rel_gap": 1e-6},
            constraints=optimize.LinearConstraint(sparse.csr_matrix(np.array(rows)), low, high),
        )  # fmt: skip
        assert found.x is not None, found.message  # each layer has a choice, and shares have no limit
        chosen = {
            name: int(np.argmax(found.x[first : first + len(self.space.layers[name])]))
            for name, first in self.first.items()
        }
        return chosen, float(found.mip_dual_bound) + SPREAD * sum(rest.values())
