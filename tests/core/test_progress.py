import io

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.progress import ProgressLine, ProgressRate, draw_bar, write_progress


@given(st.floats(-1, 2), st.integers(1, 60), st.booleans())
def test_a_bar_is_as_wide_as_it_should_be(frac: float, cells: int, unicode: bool) -> None:
    assert len(draw_bar(frac, cells, unicode=unicode)) == cells


def test_bars() -> None:
    assert draw_bar(0.5, 4) == "██  "
    assert draw_bar(1.0, 4) == "████"
    assert draw_bar(0.55, 4, unicode=False) == "##.."


def test_the_pace_is_that_of_the_last_seconds() -> None:
    pace = ProgressRate(0.0)
    assert pace.remaining_s(10) is None
    for second in range(1, 31):
        pace.mark(float(second), 10 * second if second <= 15 else 150 + 20 * (second - 15))
    assert pace.per_s() == 20.0
    assert pace.remaining_s(100) == 5.0


def test_one_line_has_it_all() -> None:
    pace = ProgressRate(0.0)
    pace.mark(1.0, 1 << 20)
    text = write_progress("warming", 1 << 20, 4 << 20, pace)
    assert text == "warming ▕██████                  ▏  25 %  1.00 MiB of 4.00 MiB  1.00 MiB/s  3.00 s left"
    assert write_progress("x", 0, 0, ProgressRate(0.0), unicode=False).startswith("x [....")


def test_what_is_over_at_once_says_nothing() -> None:
    stream = io.StringIO()
    with ProgressLine("warming", 10, stream) as line:
        line.advance(10)
    assert stream.getvalue() == ""
    assert line.done == 10


def test_a_closed_stream_is_no_error() -> None:
    stream = io.StringIO()
    line = ProgressLine("warming", 10, stream)
    stream.close()
    line.close()
    line.advance(1)
