"""Where each axis of torch's tensors is in the numbers of the graph, so that views and permutations move nothing.

A tensor's axes are made of *atoms*. Reshaping splits atoms and regroups them, permuting reorders groups; neither
touches the numbers, which lie in a separate order of atoms. Only an operation that needs another order moves them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """A part of an axis that is never taken apart further; equal only to itself.

    Attributes:
        size: of the part.
    """

    size: int


BATCH = Atom(-1)
"""The samples: first in memory, whichever axis they are part of."""

Group = tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class Laid:
    """A tensor of torch, as the numbers of a value of the graph.

    Attributes:
        value: its name.
        axes: of the tensor, each of atoms from slowest to fastest; none for size 1.
        order: of the atoms in memory, the batch left out.
    """

    value: str
    axes: tuple[Group, ...]
    order: Group

    def rows(self, axis: int) -> Group:
        """Atoms in memory order without those of an axis."""
        left_out = self.axes[axis]
        return tuple(atom for atom in self.order if atom not in left_out)

    def axes_in_memory(self) -> tuple[int, ...]:
        """Axes that are not the batch alone, in the order of memory if each lies together there, else in torch's."""
        own = [at for at, group in enumerate(self.axes) if group != (BATCH,)]
        place = {atom: at for at, atom in enumerate(self.order)}
        for group in self.axes:
            places = [place[atom] for atom in group if atom is not BATCH]
            if places != list(range(places[0], places[0] + len(places))) if places else False:
                return tuple(own)
        filled = [at for at in own if any(atom is not BATCH for atom in self.axes[at])]
        filled.sort(key=lambda at: place[next(atom for atom in self.axes[at] if atom is not BATCH)])
        return (*(at for at in own if at not in filled), *filled)


def without_batch(group: Group) -> Group:
    """The atoms of one sample."""
    return tuple(atom for atom in group if atom is not BATCH)


def size_of(group: Group) -> int:
    """Elements along atoms, the batch left out."""
    return math.prod(atom.size for atom in group if atom is not BATCH)


def permuted(laid: Laid, order: tuple[int, ...]) -> Laid:
    """Axes in another order; the numbers stay."""
    return Laid(laid.value, tuple(laid.axes[axis] for axis in order), laid.order)


def reshaped(laid: Laid, shape: tuple[int, ...]) -> Laid | None:
    """The tensor under another shape; the numbers stay. None: no split of atoms gives it.

    Args:
        laid: the tensor.
        shape: negative sizes are multiples of the batch.
    """
    waiting = [atom for group in laid.axes for atom in group]
    halves: dict[Atom, tuple[Atom, Atom]] = {}
    axes: list[Group] = []
    for size in shape:
        group: list[Atom] = []
        need, batch = abs(size), size < 0
        while need > 1 or batch:
            if not waiting:
                return None
            atom = waiting.pop(0)
            if atom is BATCH:
                if not batch:
                    return None
                batch = False
            elif need % atom.size == 0:
                need //= atom.size
            elif need > 1 and atom.size % need == 0:
                first, second = Atom(need), Atom(atom.size // need)
                halves[atom] = first, second
                waiting.insert(0, second)
                atom, need = first, 1
            else:
                return None
            group.append(atom)
        axes.append(tuple(group))
    if waiting:
        return None
    return Laid(laid.value, tuple(axes), _split(laid.order, halves))


def _split(order: Group, halves: dict[Atom, tuple[Atom, Atom]]) -> Group:
    """Atoms with those that were split replaced by their parts."""
    found: list[Atom] = []
    for atom in order:
        found += _split(halves[atom], halves) if atom in halves else (atom,)
    return tuple(found)
