"""The engine's unit for rows: its division and its root, over all small numbers, against Python's whole numbers.

One Verilated program runs all of them, before and after synthesis.
"""

import itertools
import math
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from stoker.deploy.tools.devices import fpga
from stoker.deploy.tools.netlists import cells_as_text
from stoker.deploy.tools.synthesis import synthesise_texts
from stoker.deploy.tools.verilator import simulator_of
from tests.deploy.hardware.live import needs_verilator
from tests.deploy.rtl.proofs.circuits import needs_yosys, unit_text

pytestmark = [pytest.mark.integration, needs_verilator]

TOP = "engine_rows"
LIMIT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Command:
    """Rows of one size, and what is made of them: shares if there are bits of those, else normalised numbers."""

    rows: Sequence[tuple[int, ...]]
    share_bits: int = 0
    epsilon: int = 0
    root_bits: int = 0
    reciprocal_bits: int = 0
    shift: int = 0

    def law(self) -> list[int]:
        """What must be written, 16 bits each."""
        found: list[int] = []
        for row in self.rows:
            if self.share_bits:
                total = sum(row)
                shares = [((each << self.share_bits) + total // 2) // total for each in row]
                found += [min(share, (1 << self.share_bits) - 1) for share in shares]
                continue
            centred = [len(row) * each - sum(row) for each in row]
            squares = sum(each * each for each in centred) + self.epsilon
            root = max(1, math.isqrt((squares << (2 * self.root_bits)) // len(row)))
            reciprocal = (1 << self.reciprocal_bits) // root
            half = (1 << self.shift) >> 1
            found += [(each * reciprocal + half) >> self.shift & 0xFFFF for each in centred]
        return found


def program(folder: Path, *, cells: bool = False, change: tuple[str, str] = ("", "")) -> Path:
    """The unit's simulator, kept by content."""
    source, inner = folder / "source", resources.files("stoker.deploy.tools")
    source.mkdir(parents=True)
    text = unit_text(TOP)
    assert change[0] in text
    (source / f"{TOP}.sv").write_text(text.replace(*change) if change[0] else text)
    harness = source / "harness.cpp"
    harness.write_text(Path(__file__).with_name("rows_harness.cpp").read_text())
    (source / "streams.hpp").write_text(inner.joinpath("streams.hpp").read_text())
    if not cells:
        return simulator_of(source, TOP, [f"{TOP}.sv"], harness, "", limit_s=LIMIT_S)
    part = fpga("ecp5-25k")
    netlist, taken = synthesise_texts({f"{TOP}.sv": text}, [f"{TOP}.sv"], TOP, part, limit_s=LIMIT_S)
    assert taken.dsps  # its products are in multipliers
    made = cells_as_text(netlist, TOP, part, limit_s=LIMIT_S)
    return simulator_of(made, TOP, ["cells.v"], harness, "", kind="cells", limit_s=LIMIT_S)


def wrong(program: Path, folder: Path, commands: Iterable[Command]) -> int:
    """Numbers that are not the law's, or were not written once."""
    numbers, words, due = list[int](), list[int](), list[int]()
    for each in commands:
        at = len(numbers)
        words += [
            0 if each.share_bits else 1, at, at, len(each.rows[0]), len(each.rows), each.epsilon, each.root_bits,
            each.reciprocal_bits, each.shift, each.share_bits,
        ]  # fmt: skip
        numbers += itertools.chain.from_iterable(each.rows)
        due += each.law()
    assert len(numbers) < 1 << 20
    made = folder / "run"
    made.mkdir(exist_ok=True)
    (made / "memory.bin").write_bytes(np.array(numbers, "<i4").tobytes())
    (made / "commands.bin").write_bytes(np.array(words, "<u8").tobytes())
    subprocess.run([program, made], check=True, timeout=LIMIT_S)
    got, counts = np.fromfile(made / "out.bin", "<u2"), np.fromfile(made / "counts.bin", np.uint8)
    return int(((got != np.array(due)) | (counts != 1)).sum())


def shares(bits: Iterable[int]) -> list[Command]:
    """All rows of one to three small numbers, and of two of the ends of 16 bits."""
    ends = (0, 1, 2, 3, 255, 256, 32767, 32768, 65534, 65535)
    kinds = [
        [(each,) for each in range(1, 64)],
        [row for row in itertools.product(range(32), repeat=2) if any(row)],
        [row for row in itertools.product(range(8), repeat=3) if any(row)],
        [row for row in itertools.product(ends, repeat=2) if any(row)],
    ]
    return [Command(rows=rows, share_bits=each) for each in bits for rows in kinds]


def roots(epsilons: Iterable[int], root_bits: int, reciprocal_bits: int, shift: int) -> list[Command]:
    """Rows of the least spread: little more than `epsilon` is under the root, and its reciprocal is written."""
    return [
        Command(rows=[(0, 1)], epsilon=each, root_bits=root_bits, reciprocal_bits=reciprocal_bits, shift=shift)
        for each in epsilons
    ]


def norms(settings: Iterable[tuple[int, int, int, int]]) -> list[Command]:
    """All rows of one to four small numbers, and some of the ends of 16 bits, for each setting."""
    ends = (-32768, -32767, -1, 0, 1, 32767)
    kinds = [
        [(each,) for each in range(-8, 8)],
        list(itertools.product(range(-8, 8), repeat=2)),
        list(itertools.product(range(-3, 4), repeat=3)),
        list(itertools.product(range(-2, 2), repeat=4)),
        list(itertools.product(ends, repeat=3)),
    ]
    return [
        Command(rows=rows, epsilon=epsilon, root_bits=root, reciprocal_bits=reciprocal, shift=shift)
        for epsilon, root, reciprocal, shift in settings
        for rows in kinds
    ]


SETTINGS = [
    (epsilon, root, reciprocal, shift)
    for epsilon in (0, 1, 12345)
    for root in (0, 3, 8)
    for reciprocal, shift in ((0, 0), (12, 1), (24, 12), (40, 23), (46, 30), (46, 46))
]
"""Epsilon, bits of the root's fraction and of the reciprocal, and the shift."""


@pytest.mark.slow("compiles a simulator")
def test_every_small_division(tmp_path: Path) -> None:
    assert not wrong(program(tmp_path), tmp_path, shares(range(1, 17)))


@pytest.mark.slow("compiles a simulator; sixty thousand roots")
def test_every_small_root(tmp_path: Path) -> None:
    built = program(tmp_path)
    # The reciprocal is written whole, and its root in whole numbers up to 128.
    assert not wrong(built, tmp_path, roots(range(1 << 15), 0, 15, 0))
    assert not wrong(built, tmp_path, roots(range(1 << 13), 4, 20, 1))
    huge = [(1 << 63) - 4 - each for each in range(100)] + [
        (1 << at) - 2 + by for at in range(2, 62) for by in range(3)
    ]
    assert not wrong(built, tmp_path, roots(huge, 0, 46, 0))


@pytest.mark.slow("compiles a simulator; seventy thousand rows")
def test_every_small_row_is_normalised(tmp_path: Path) -> None:
    assert not wrong(program(tmp_path), tmp_path, norms(SETTINGS))


@pytest.mark.slow("compiles a simulator for each mistake")
@pytest.mark.parametrize(
    "change",
    [
        ("trial >= taken", "trial > taken"),
        ("{root, 2'b01}", "{root, 2'b11}"),
        ("34'(total[D_W-1:1])", "34'(total[D_W-1:2])"),
        ("kept[16:1] + 16'(kept[0])", "kept[16:1]"),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, change: tuple[str, str]) -> None:
    built = program(tmp_path, change=change)
    assert wrong(built, tmp_path, [*shares([4]), *norms([(1, 3, 24, 12)]), *roots(range(200), 0, 15, 0)])


@needs_yosys
@pytest.mark.slow("synthesises the unit, and compiles a simulator of its cells")
def test_cells_divide_and_take_roots(tmp_path: Path) -> None:
    built = program(tmp_path, cells=True)
    commands = [*shares([1, 8, 16]), *roots(range(0, 1 << 13, 7), 0, 15, 0), *norms([(0, 3, 24, 12), (7, 0, 46, 30)])]
    assert not wrong(built, tmp_path, commands)
