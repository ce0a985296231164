"""What synthesis makes of memories: forms at the sizes where they change; shapes of block memories used up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.deploy.search.memory_forms import MappedMemory, MemoryShape, mapped
from stoker.deploy.tools.devices import Family


@pytest.mark.parametrize(
    ("words", "bits", "kind", "wanted"),
    [
        # As yosys 0.70 mapped them, in designs of the specimens.
        (64, 32, "constants", MappedMemory(form="logic")),
        (72, 36, "constants", MappedMemory(form="block", cells=1)),
        (64, 128, "constants", MappedMemory(form="logic")),  # four block memories cost a little more
        (1024, 18, "constants", MappedMemory(form="block", cells=1)),
        (3, 8, "fifo", MappedMemory(form="distributed", cells=2)),
        (17, 1, "ring", MappedMemory(form="distributed", cells=2)),
        (128, 9, "ring", MappedMemory(form="block", cells=1)),
        (40, 8, "ring", MappedMemory(form="distributed", cells=6)),
        (640, 8, "ring", MappedMemory(form="block", cells=1)),
        (80, 32, "ring", MappedMemory(form="block", cells=1)),
    ],
)
def test_forms_of_ecp5(words: int, bits: int, kind: str, wanted: MappedMemory) -> None:
    shape = MemoryShape(use=kind, words=words, bits=bits, written=kind != "constants", clocked=kind != "fifo")
    assert mapped(shape, "ecp5") == wanted


@pytest.mark.parametrize(
    ("words", "bits", "kind", "wanted"),
    [
        # As yosys 0.70 mapped them, in designs of the specimens.
        (4, 64, "fifo", MappedMemory(form="logic")),  # four block memories cost two bits more
        (5, 64, "fifo", MappedMemory(form="block", cells=4)),
        (16, 8, "fifo", MappedMemory(form="block", cells=1)),
        (64, 16, "constants", MappedMemory(form="logic")),
    ],
)
def test_forms_of_ice40(words: int, bits: int, kind: str, wanted: MappedMemory) -> None:
    shape = MemoryShape(use=kind, words=words, bits=bits, written=kind != "constants", clocked=kind != "fifo")
    assert mapped(shape, "ice40") == wanted


@pytest.mark.parametrize(
    ("words", "bits", "kind", "wanted"),
    [
        # As yosys 0.70 mapped them, in a module for each; the FIFOs in designs of the specimens.
        (64, 32, "constants", MappedMemory(form="logic")),
        (72, 36, "constants", MappedMemory(form="block", cells=1)),
        (1024, 8, "constants", MappedMemory(form="block", cells=1)),
        (1500, 24, "constants", MappedMemory(form="block", cells=2)),  # words of 72 bits in a RAMB36
        (80, 8, "ring", MappedMemory(form="distributed", cells=6)),
        (320, 9, "ring", MappedMemory(form="block", cells=1)),
        (1500, 48, "ring", MappedMemory(form="block", cells=5)),
        (9000, 24, "ring", MappedMemory(form="block", cells=14)),
        (2, 8, "fifo", MappedMemory(form="logic")),  # read and written in a cycle: this costs more than its bits
        (3, 8, "fifo", MappedMemory(form="distributed", cells=2)),
        (32, 128, "fifo", MappedMemory(form="distributed", cells=22)),
    ],
)
def test_forms_of_7_series(words: int, bits: int, kind: str, wanted: MappedMemory) -> None:
    shape = MemoryShape(use=kind, words=words, bits=bits, written=kind != "constants", clocked=kind != "fifo")
    assert mapped(shape, "xc7") == wanted


@given(
    st.sampled_from([("ecp5", 18 * 1024), ("ice40", 4 * 1024), ("xc7", 18 * 1024)]), st.integers(1, 5000),
    st.integers(1, 300), st.booleans(), st.booleans(),
)  # fmt: skip
def test_cells_hold_all_bits(
    family: tuple[Family, int], words: int, bits: int, written: bool, clocked: bool
) -> None:  # fmt: skip
    shape = MemoryShape(use="any", words=words, bits=bits, written=written, clocked=clocked)
    found = mapped(shape, family[0])
    if found.form == "block":
        assert clocked or family[0] == "ice40"
        assert found.cells * family[1] >= words * bits
    if found.form == "distributed":
        assert written
        assert family[0] != "ice40"
        assert found.cells * {"ecp5": 64, "xc7": 192}[family[0]] >= words * bits
    assert (found.cells > 0) == (found.form != "logic")


def test_a_memory_that_is_read_at_once_is_in_no_block() -> None:
    assert (
        mapped(MemoryShape(use="any", words=4096, bits=36, written=True, clocked=False), "ecp5").form == "distributed"
    )
