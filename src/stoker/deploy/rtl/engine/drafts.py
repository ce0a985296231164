"""Instructions whose buffers have no addresses yet, and the addresses that they get by their lives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from stoker.deploy.rtl.engine.instructions import Instruction, Level
from stoker.deploy.rtl.engine.shape import COUNT_BITS, LEVELS, EngineShape


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of a draft.

    Attributes:
        count: rounds.
        a, b, c, p: by how much addresses move from one round to the next.
        blocks: whether it goes through words of a row, of which the last may have fewer numbers.
        pair: whether ``a`` moves from the draft's first buffer to its second instead.
    """

    count: int
    a: int = 0
    b: int = 0
    c: int = 0
    p: int = 0
    blocks: bool = False
    pair: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlace:
    """Where the numbers of a value are.

    Attributes:
        buffer: that they are in.
        start: numbers of the buffer before the first.
        rows: of the value; one, unless it is an image.
        row: numbers of a row.
        pitch: numbers of the buffer from a row to the next.
    """

    buffer: str
    start: int = 0
    rows: int
    row: int
    pitch: int

    @property
    def runs(self) -> tuple[int, int]:
        """Runs of numbers that lie together, and the numbers of each."""
        return (1, self.rows * self.row) if self.pitch == self.row else (self.rows, self.row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An instruction over buffers.

    Attributes:
        operation: value of the graph that it helps to compute.
        fields: of the instruction, those of addresses relative to the buffers.
        outer: loops of results, outermost first.
        inner: loops that reduce, outermost first.
        a: buffer of the first operand.
        b: buffer of the second operand, where that is in data memory.
        c: buffer of the result.
        pair: buffer whose numbers are added to those of ``a``.
    """

    operation: str
    fields: Instruction
    outer: tuple[Loop, ...] = ()
    inner: tuple[Loop, ...] = ()
    a: str | None = None
    b: str | None = None
    c: str | None = None
    pair: str | None = None

    @property
    def buffers(self) -> tuple[str, ...]:
        """All that it reads or writes."""
        return tuple(name for name in (self.a, self.b, self.c, self.pair) if name is not None)


@dataclass(slots=True)
class Drafting:
    """A program being written.

    Args:
        shape: of the engine.
    """

    shape: EngineShape
    drafts: list[Draft] = field(default_factory=list[Draft])
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    """Numbers of each buffer."""

    def buffer(self, name: str, size: int) -> str:
        """A new buffer; its name gets a number if it is taken."""
        unique, count = name, 1
        while unique in self.sizes:
            count += 1
            unique = f"{name}.{count}"
        self.sizes[unique] = size
        return unique

    def addresses(self) -> dict[str, int]:
        """Where each buffer is: those whose lives meet lie apart; large ones are placed first.

        A buffer lives from the first to the last instruction that touches it.

        Raises:
            ValueError: data memory is too small.
        """
        lives: dict[str, tuple[int, int]] = {}
        for at, draft in enumerate(self.drafts):
            for name in draft.buffers:
                lives[name] = (lives.get(name, (at, at))[0], at)
        lanes = self.shape.lanes
        found: dict[str, int] = {}
        for name in sorted(lives, key=lambda each: (-self.sizes[each], lives[each])):
            size = -(-self.sizes[name] // lanes) * lanes
            begin, end = lives[name]
            taken = sorted(
                (found[other], found[other] - (-self.sizes[other] // lanes) * lanes)
                for other in found
                if lives[other][0] <= end and begin <= lives[other][1]
            )
            address = 0
            for low, high in taken:
                if address + size <= low:
                    break
                address = max(address, high)
            found[name] = address
        if (most := self.words(found)) > self.shape.data_words:
            raise ValueError(too_small("data", most, self.shape.data_words))
        return found

    def words(self, addresses: Mapping[str, int]) -> int:
        """Words of data memory up to the end of the last buffer."""
        lanes = self.shape.lanes
        return max((-(-(at + self.sizes[name]) // lanes) for name, at in addresses.items()), default=0)

    def instructions(self) -> tuple[tuple[Instruction, ...], tuple[str, ...]]:
        """The program, and the value that each instruction helps to compute. Errors of `addresses`."""
        where = self.addresses()
        found = [(each, draft.operation) for draft in self.drafts for each in _placed(draft, where)]
        code, operations = [each for each, _ in found], tuple(operation for _, operation in found)
        return (*code[:-1], structs.replace(code[-1], end=True)), operations


def too_small(memory: str, needed: int, there: int) -> str:
    """The message about a memory that a model does not fit into."""
    return (
        f"the engine's memory of {memory} must hold {needed:,} words of the model, has {there:,}: "
        f"{needed - there:,} too few; write a larger one with `--memory {memory}={1 << (needed - 1).bit_length()}`"
    )


def _placed(draft: Draft, where: dict[str, int]) -> Iterator[Instruction]:
    base = {"a": draft.a, "b": draft.b, "c": draft.c}
    moved = {
        name: getattr(draft.fields, name) + where[buffer] for name, buffer in base.items() if buffer is not None
    }  # fmt: skip
    apart = where[draft.pair] - where[draft.a or ""] if draft.pair is not None else 0
    outer, inner = (
        _merged([replace(loop, a=apart) if loop.pair else loop for loop in loops if loop.count > 1])
        for loops in (draft.outer, draft.inner)
    )
    full = draft.fields.full if any(loop.blocks for loop in outer) else draft.fields.tail
    yield from _unrolled(structs.replace(draft.fields, **moved, full=full), outer, inner)


def _unrolled(fields: Instruction, outer: Sequence[Loop], inner: Sequence[Loop]) -> Iterator[Instruction]:
    """One instruction, or one for each round of the outermost loop while there are more loops than levels."""
    if len(outer) + len(inner) > LEVELS:
        first = outer[0]
        for at in range(first.count):
            moved = {name: getattr(fields, name) + at * getattr(first, name) for name in "abcp"}
            yield from _unrolled(structs.replace(fields, **moved), outer[1:], inner)
        return
    loops = [*reversed(inner), *reversed(outer)]
    tail = next((at for at, loop in enumerate(loops) if loop.blocks), LEVELS)
    levels = tuple(Level(count=loop.count, a=loop.a, b=loop.b, c=loop.c, p=loop.p) for loop in loops)
    yield structs.replace(fields, levels=levels, reduce=len(inner), tail_level=tail)


def _merged(loops: Sequence[Loop]) -> list[Loop]:
    """Loops of which each continues where the one inside ends become one."""
    found: list[Loop] = []
    for loop in loops:
        above = found[-1] if found else None
        if (
            above is not None
            and not (loop.blocks or above.blocks or loop.pair or above.pair)
            and all(getattr(above, name) == loop.count * getattr(loop, name) for name in "abcp")
            and above.count * loop.count <= 1 << COUNT_BITS
        ):
            found[-1] = replace(loop, count=above.count * loop.count)
        else:
            found.append(loop)
    return found
