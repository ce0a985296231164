"""Rows that windows need and free, against windows that are looked at one by one."""

from hypothesis import assume, given
from hypothesis import strategies as st

from stoker.deploy.rtl.geometry import Windows


@st.composite
def drawn_windows(draw: st.DrawFn) -> Windows:
    kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    dilation = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    span = tuple((size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True))
    padding = tuple(draw(st.integers(0, each - 1)) for each in (span[0], span[0], span[1], span[1]))
    size = (draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    assume(size[0] + padding[0] + padding[1] >= span[0] and size[1] + padding[2] + padding[3] >= span[1])
    return Windows(
        size=size, channels=1, kernel=kernel, stride=(draw(st.integers(1, 4)), draw(st.integers(1, 4))),
        dilation=dilation, padding=padding,
    )  # fmt: skip


def rows_looked_at(windows: Windows, row: int) -> set[int]:
    first = row * windows.stride[0] - windows.padding[0]
    rows = {first + tap * windows.dilation[0] for tap in range(windows.kernel[0])}
    return {each for each in rows if 0 <= each < windows.size[0]}


@given(drawn_windows())
def test_rows_are_there_when_they_are_looked_at_and_are_kept_until_then(windows: Windows) -> None:
    needs, freed = windows.needs(), windows.freed()
    assert len(needs) == len(freed) == windows.out[0]
    gone = 0
    for row, (need, done) in enumerate(zip(needs, freed, strict=True)):
        looked = rows_looked_at(windows, row)
        assert all(gone <= each < need for each in looked)
        assert gone <= done <= need <= windows.size[0]
        gone = done
    assert needs[-1] == freed[-1] == windows.size[0]


@given(drawn_windows())
def test_the_ring_holds_a_row_of_windows_and_what_the_next_one_needs(windows: Windows) -> None:
    needs, freed = windows.needs(), windows.freed()
    height, rows = windows.size[0], len(needs)
    for row in range(rows):
        gone = 0 if row == 0 else freed[row - 1]
        after = needs[row + 1] if row + 1 < rows else height + needs[0]
        assert windows.ring_rows() > after - gone
