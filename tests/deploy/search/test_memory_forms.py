"""What synthesis makes of memories: forms at the sizes where they change; shapes of block memories used up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.deploy.search.memory_forms import MappedMemory, MemoryShape, mapped


@pytest.mark.parametrize(
    ("words", "bits", "kind", "wanted"),
    [
        # As yosys 0.70 mapped them, in designs of the specimens.
        (64, 32, "constants", MappedMemory(form="logic")),
        (72, 36, "constants", MappedMemory(form="block", cells=1)),
        (64, 128, "constants", MappedMemory(form="logic")),  # four block memories cost a little more
        (1024, 18, "constants", MappedMemory(form="block", cells=1)),
        (3, 8, "fifo", MappedMemory(form="distributed", cells=2)),
        (40, 8, "ring", MappedMemory(form="distributed", cells=6)),
        (640, 8, "ring", MappedMemory(form="block", cells=1)),
        (80, 32, "ring", MappedMemory(form="block", cells=1)),
    ],
)
def test_forms_of_ecp5(words: int, bits: int, kind: str, wanted: MappedMemory) -> None:
    shape = MemoryShape(use=kind, words=words, bits=bits, written=kind != "constants", clocked=kind != "fifo")
    assert mapped(shape, "ecp5") == wanted


@given(st.integers(1, 5000), st.integers(1, 300), st.booleans(), st.booleans())
def test_cells_hold_all_bits(words: int, bits: int, written: bool, clocked: bool) -> None:
    shape = MemoryShape(use="any", words=words, bits=bits, written=written, clocked=clocked)
    found = mapped(shape, "ecp5")
    if found.form == "block":
        assert clocked
        assert found.cells * 18 * 1024 >= words * bits
    if found.form == "distributed":
        assert written
        assert found.cells * 64 >= words * bits
    assert (found.cells > 0) == (found.form != "logic")


def test_a_memory_that_is_read_at_once_is_in_no_block() -> None:
    assert (
        mapped(MemoryShape(use="any", words=4096, bits=36, written=True, clocked=False), "ecp5").form == "distributed"
    )
