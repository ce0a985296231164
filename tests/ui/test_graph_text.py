"""A cut as text: program order, marks, what is sent, reasons."""

from __future__ import annotations

import re

import pytest

from stoker.records.events import CutChosen
from stoker.ui.cuts import headline_cut, latest_cuts, short_name, summarise_cut, write_cut, write_gain
from stoker.ui.graph_svg import render_svg
from stoker.ui.graph_text import render_graph
from stoker.ui.report_text import Style
from tests.ui.cuts import CUTS, Sketch, images, nothing_moves, recommender


def test_calls_stand_in_program_order_with_their_marks_and_reasons() -> None:
    text = render_graph(images(), site="train.py:41")
    lines = text.splitlines()
    assert lines[0] == "Cut of loader 0 (train.py:41), variant 0, recorded over 4 steps"
    table = {line[2:4]: line for line in lines if re.match(r"[◀○■] x\d", line)}
    assert list(table) == [f"x{number}" for number in range(9)]
    assert [line[0] for line in table.values()] == list("◀◀◀◀○■■■■")
    assert re.fullmatch(r"◀ x3 = avg_pool2d\(x2\) +64x3x56x56 float32 +3.20 ms +2.30 MiB  train.py:63", table["x3"])
    assert "2.30 MiB" not in table["x2"]
    one_hot = lines.index(table["x4"])
    assert lines[one_hot + 1].strip() == "it makes 500 KiB of 512 B: sending them takes longer than making them"
    assert re.search(r"· batch\[0\] +64x3x224x224 uint8 +not sent", text)
    assert re.search(r"· batch\[1\] +64 int64 +512 B", text)


def test_totals() -> None:
    text = render_graph(images())
    assert re.search(r"◀ moved to data workers +4 calls +7.90 ms a step", text)
    assert re.search(r"○ stateless, but stays +1 call +50.0 us a step", text)
    assert re.search(r"■ stateful +4 calls +9.20 ms a step", text)
    assert re.search(r"sent to the program +2 tensors +2.30 MiB a batch", text)


def test_a_reason_is_said_once_in_a_row() -> None:
    text = render_graph(recommender())
    assert text.count("takes a parameter of the model") < 4


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("name", CUTS)
def test_text_keeps_to_its_width(name: str, unicode: bool, width: int) -> None:
    site = "a/rather/long/path/to/some/package/train.py:41"
    text = render_graph(CUTS[name](), Style(width=width, unicode=unicode), site=site)
    assert all(len(line) <= width for line in text.splitlines())
    assert unicode or text.isascii()
    assert "\x1b" not in text


def test_colour_changes_no_word() -> None:
    coloured = render_graph(images(), Style(color=True))
    assert re.sub(r"\x1b\[\d+m", "", coloured) == render_graph(images())
    assert all(f"\x1b[{code}m" in coloured for code in (34, 33, 90))


def test_a_value_that_is_read_into_python_says_so() -> None:
    sketch = Sketch()
    total = sketch.call("torch.sum", [sketch.leaf("batch", [8])], [])
    cut = sketch.cut()
    cut.values[total].crosses, cut.values[total].kept = True, "is read into Python (train.py:9)"
    assert "x0 is read into Python (train.py:9)" in render_graph(cut)


def untimed() -> CutChosen:
    """A call that moves, and one of the model's that takes its result: it is neither timed nor followed further."""
    sketch = Sketch()
    scaled = sketch.call("torch.div", [sketch.leaf("batch[0]", [8, 4])], ms=0.3)
    sketch.call("torch.nn.functional.linear", [scaled], place="stateful", ms=0.0, why="it uses a parameter")
    cut = sketch.cut()
    cut.nodes[1].outputs = []
    del cut.values[-1]
    return cut


def test_calls_that_were_not_timed_have_no_time() -> None:
    text = render_graph(untimed())
    assert re.search(r"^■ linear\(x0\) +model.py:31$", text, re.MULTILINE)
    assert re.search(r"^■ stateful +1 call$", text, re.MULTILINE)
    picture = render_svg(untimed())
    assert "not followed further" in picture
    for shown in (text, picture):
        assert "0 s" not in shown


def test_the_headline_is_the_cut_in_force_that_saves_most() -> None:
    train, short = images(), nothing_moves()
    short.variant, short.t_s = 1, 9.0
    early = images()
    early.outcome, early.t_s = "reverted", 1.0
    cuts = latest_cuts([early, train, short], 0)
    assert cuts == [train, short]
    assert headline_cut(cuts) is train
    assert headline_cut([short]) is short
    assert headline_cut([short, early]) is early, "one that was tried says more than one that was not"
    assert headline_cut([]) is None
    assert latest_cuts([train], 1) == []


def test_a_cut_in_one_line() -> None:
    cut = images()
    found = summarise_cut([cut])
    assert found is not None
    assert (found.moved, found.stateless, found.calls, found.variants) == (4, 5, 9, 1)
    line = write_cut(found)
    assert line == "4 of 5 stateless calls moved to data workers, 7.43 ms a step; 9.19 MiB → 2.30 MiB a batch"
    cut.outcome, cut.reason = "reverted", "0.99x of the steps without it"
    found = summarise_cut([cut])
    assert found is not None
    assert write_cut(found) == "4 of 5 stateless calls moved and taken back: 0.99x of the steps without it"
    assert write_gain(cut).startswith("4 of 5 stateless calls moved and taken back; a step of 42.9 ms")
    for node in cut.nodes:
        node.place = "stateful" if node.place == "stateful" else "stateless"
    assert write_gain(cut).startswith("a cut was tried and taken back; a step of 42.9 ms")
    found = summarise_cut([nothing_moves()])
    assert found is not None
    assert write_cut(found) == "nothing moved: no call depends on the batch alone"


@pytest.mark.parametrize(
    ("function", "name"),
    [("torch.nn.functional.one_hot", "one_hot"), ("Tensor.T.__get__", "T.__get__"), ("normalise", "normalise")],
)
def test_short_names(function: str, name: str) -> None:
    assert short_name(function) == name
