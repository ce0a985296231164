from stoker.ui.report_text import Style
from stoker.ui.tables import render_facts, render_table


def test_numbers_are_to_the_right_and_names_to_the_left() -> None:
    lines = render_table(["name", "size"], [["a", "1"], ["long", "100"]], Style(), right=(1,))
    assert lines == ["name  size", "a        1", "long   100"]


def test_the_last_column_gives_way_from_its_start() -> None:
    lines = render_table(["n", "path"], [["1", "s3://bucket/" + "folder/" * 20 + "file"]], Style(width=40))
    assert len(lines[1]) == 40
    assert lines[1].endswith("folder/file")
    assert "…" in lines[1]


def test_names_cannot_move_the_cursor() -> None:
    assert "\x1b" not in "".join(render_table(["a"], [["x\x1b[2Jy"]], Style()))


def test_facts_stand_in_a_column() -> None:
    assert render_facts([("Size", "1"), ("Version", "2")], Style()) == ["Size     1", "Version  2"]
