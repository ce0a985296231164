"""What the live line says, when, and where; beside programs that write what they like: ``test_terminal.py``."""

from __future__ import annotations

import io
import re

import pytest

from stoker.records.events import Notice, Progress, SizesChosen, WorkerLost
from stoker.ui.live import LiveLine
from stoker.ui.live_line import LiveState
from stoker.ui.report_text import Style
from stoker.ui.terminal import choose_mode, style_for
from tests.ui.screen import run_on_terminal
from tests.ui.timeline import growth_run

PRELUDE = """
import os, sys
from stoker.records.events import Notice, Progress
from stoker.ui.live import LiveLine
from stoker.ui.terminal import choose_mode, style_for
from tests.ui.timeline import growth_run

now = [0.0]
events = [event for event in growth_run().events if isinstance(event, Progress) and event.loader == 0]
mode = choose_mode(sys.stderr, os.environ)
live = LiveLine(sys.stderr, lambda: now[0], mode=mode, style=style_for(sys.stderr, os.environ))

def step(seconds=1.0):
    now[0] += seconds
    live.on_event(events.pop(0))
"""


def on_terminal(body: str, *, columns: int = 100, **environ: str) -> tuple[str, list[str]]:
    """The bytes and the final screen of a program with a live line."""
    terminal = run_on_terminal(PRELUDE + body, columns=columns, **environ)
    return terminal.text, terminal.lines()


def is_ours(line: str) -> bool:
    return "samples/s" in line


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def progress_at(t_s: float, batches: int, **fields: object) -> Progress:
    base = next(event for event in growth_run().events if isinstance(event, Progress))
    values = {name: getattr(base, name) for name in base.__struct_fields__}
    values |= {"t_s": t_s, "batches": batches, "samples": 64 * batches, "compute_s": 0.1 * batches}
    return Progress(**{**values, **fields})


def test_notice_gets_a_line_of_its_own() -> None:
    body = """
step()
live.on_event(Notice(t_s=1.0, text="2 workers keep input wait under 1 %"))
step()
live.close()
"""
    _, lines = on_terminal(body)
    assert lines == ["stoker: 2 workers keep input wait under 1 %"]


def test_at_most_four_updates_a_second() -> None:
    text, _ = on_terminal("for _ in range(40): step(0.05)\nlive.close()")
    assert text.count("samples/s") <= 2.0 * 4 + 1


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100, 160])
def test_line_fits_every_width(columns: int) -> None:
    text, _ = on_terminal("step(); step(); live.close()", columns=columns)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", text.rpartition("\x1b[30;1H\x1b[0m")[2].partition("\x1b[K")[0])
    assert 0 < len(shown) < columns


def test_no_color_has_no_colour() -> None:
    coloured, _ = on_terminal("step(); step(); live.close()")
    plain, _ = on_terminal("step(); step(); live.close()", NO_COLOR="1")
    assert "\x1b[1m" in coloured
    assert set(re.findall(r"\x1b\[([0-9;]*)m", plain)) == {"0"}
    assert is_ours(plain)


@pytest.mark.parametrize("environ", [{"CI": "true"}, {"TERM": "dumb"}])
def test_ci_and_dumb_terminals_get_plain_lines(environ: dict[str, str]) -> None:
    text, lines = on_terminal("for _ in range(70): step()\nlive.close()", **environ)
    assert "\x1b" not in text
    assert sum(map(is_ours, lines)) == 2


@pytest.mark.parametrize(
    ("environ", "quiet", "rank", "mode"),
    [
        ({"TERM": "xterm"}, False, 0, "line"),
        ({"TERM": "xterm", "CI": "0"}, False, 0, "line"),
        ({"TERM": "xterm", "CI": "true"}, False, 0, "plain"),
        ({"TERM": "dumb"}, False, 0, "plain"),
        ({"TERM": "xterm"}, True, 0, "off"),
        ({"TERM": "xterm"}, False, 1, "off"),
    ],
)
def test_mode(environ: dict[str, str], quiet: bool, rank: int, mode: str) -> None:
    assert choose_mode(Terminal(), environ, quiet=quiet, rank=rank) == mode


def test_file_gets_plain_lines_and_no_standard_error_is_no_trouble() -> None:
    assert choose_mode(io.StringIO(), {"TERM": "xterm"}) == "plain"
    assert choose_mode(None, {"TERM": "xterm"}) == "off"


def test_plain_lines_come_every_thirty_seconds() -> None:
    now = [0.0]
    stream = io.StringIO()
    live = LiveLine(stream, lambda: now[0], mode="plain", style=Style())
    for second in range(1, 100):
        now[0] = second
        live.on_event(progress_at(second, second))
    live.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert all(line.startswith("stoker  640 samples/s  wait ") for line in lines), lines


def test_closed_stream_is_no_trouble() -> None:
    stream = io.StringIO()
    live = LiveLine(stream, mode="plain", style=Style())
    stream.close()
    live.on_event(Notice(t_s=0.0, text="x"))
    live.on_event(Notice(t_s=0.0, text="x"))


def test_storm_of_lost_workers_is_left_to_the_report() -> None:
    stream = io.StringIO()
    live = LiveLine(stream, mode="plain", style=Style())
    for worker in range(20):
        live.on_event(WorkerLost(t_s=1.0, loader=0, worker=worker, pid=9, cause="killed by signal 9", released=2))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[0] == "stoker: worker 0 (pid 9) lost: killed by signal 9; 2 items issued again"
    assert lines[-1].endswith("further losses only in the report")


def test_line_shows_the_recent_past_not_the_mean() -> None:
    state = LiveState()
    for second in range(1, 30):
        state.add(progress_at(second, 10 * min(second, 20) + 100 * max(0, second - 20), compute_s=float(second)))
    assert "6,400 samples/s" in state.render(Style())


def test_unknown_batch_sizes_give_batches() -> None:
    state = LiveState()
    state.add(progress_at(1.0, 10, samples=0))
    assert "batches/s" in state.render(Style())
    assert LiveState().render(Style()) == ""


def test_style_of_a_pipe_is_plain_and_wide() -> None:
    assert style_for(io.StringIO(), {"TERM": "xterm"}) == Style(width=100, color=False, unicode=False)
    assert not style_for(Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}).color
    assert style_for(Terminal(), {"TERM": "xterm"}).color


def test_the_line_names_the_ranks_that_stoker_started() -> None:
    state = LiveState()
    for event in growth_run().events:
        state.add(event)
    assert "rank" not in state.render(Style(width=140))
    state.add(SizesChosen(t_s=1.0, workers=2, reason="two are better"))
    assert "%  2 ranks  " in state.render(Style(width=140))
