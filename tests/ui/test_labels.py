"""Labels of drawings cross no line and no other label where there is room, and stay in the drawing."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.ui.drawing.labels import LabelBox, LabelPlace, Labels, around, draw_limits
from tests.ui.drawn import labels_of, lines_of

PERCENTS = st.floats(0.5, 99.5)


@given(PERCENTS, PERCENTS)
def test_names_of_two_limits_cross_nothing_wherever_their_lines_are(x: float, y: float) -> None:
    drawn = draw_limits(x, y, "deadline", "ecp5-85k", Labels())
    (one, other), lines = labels_of(drawn).values(), lines_of(drawn, "limit")
    assert not one.meets(other)
    assert not any(label.meets(line) for label in (one, other) for line in lines)
    assert one.is_inside
    assert other.is_inside


def test_one_limit_has_its_name_and_none_has_no_region() -> None:
    assert list(labels_of(draw_limits(40.0, None, "rate", "xc7", Labels()))) == ["rate"]
    assert list(labels_of(draw_limits(None, 40.0, "rate", "xc7", Labels()))) == ["xc7"]
    assert draw_limits(None, None, "rate", "xc7", Labels()) == ""


def test_the_best_place_is_taken_unless_something_is_there() -> None:
    places = around(50.0, 50.0, 7, 8, 16)
    free = Labels().draw("2 lanes", places)
    assert 'dx="7" dy="-8" text-anchor="start"' in free
    crossed = Labels()
    crossed.avoid_line(55.0, 0.0, 55.0, 100.0)
    assert 'dx="-7" dy="-8" text-anchor="end"' in crossed.draw("2 lanes", places)
    both = Labels()
    both.avoid_stairs([(44.0, 0.0), (44.0, 100.0), (56.0, 100.0)])
    both.avoid_line(56.0, 0.0, 56.0, 100.0)
    assert 'text-anchor="middle"' in both.draw("pick", places)


def test_an_optional_label_is_left_out_where_it_would_hide_something() -> None:
    hidden = Labels()
    place = [LabelPlace(50.0, 50.0, 7, -8)]
    hidden.avoid_mark(51.0, 49.0)
    assert hidden.draw("2 lanes", place, optional=True) == ""
    assert "2 lanes" in hidden.draw("2 lanes", place)
    assert hidden.draw("4 lanes", place, optional=True) == ""  # on the words before


def test_edges_may_touch() -> None:
    box = LabelBox(10.0, 10.0, 20.0, 20.0)
    assert not box.meets(LabelBox(20.0, 0.0, 20.0, 100.0))
    assert box.meets(LabelBox(15.0, 0.0, 15.0, 100.0))
