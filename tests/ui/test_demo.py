"""The screen of the demonstration, and the figures on it."""

from __future__ import annotations

import pytest

from stoker.ui.demo_text import Course, Demonstration, first_difference, gain_of, render_demo
from stoker.ui.report_text import Style
from stoker.ui.series import WorkerStep

STEPS = 60


def course(batch_s: float, slow_batches: int = 0, losses: list[str] | None = None) -> Course:
    """A run that printed its facts at second 3, whose first batches took four times as long."""
    made = Course()
    made.add("data: 480 JPEG images of 320 x 240, DataLoader(num_workers=2)", 2.9)
    made.add("emulated: a read takes 40 ms, a training step 40 ms", 3.0)
    now_s = 3.0
    for step in range(1, STEPS + 1):
        now_s += batch_s * (4 if step <= slow_batches else 1)
        made.add(f"step {step} loss {losses[step - 1] if losses else repr(1.5 / step)}", now_s)
    return made


def demonstration(plain: Course, served: Course, load: float = 0.3) -> Demonstration:
    return Demonstration(
        program="train.py",
        plain=plain,
        served=served,
        declared_workers=2,
        samples_per_batch=8,
        workers=[
            WorkerStep(t_s=1.0, workers=2, reason=""),
            WorkerStep(t_s=2.0, workers=6, reason=""),
            WorkerStep(t_s=4.0, workers=9, reason=""),
        ],
        from_s=0.5,
        cores=2.0,
        load=load,
        took_s=43.2,
        report="stoker-runs/20261123-100000-demo-4711/report.html",
        path="/usr/lib/python3/site-packages/stoker/cli/demo/program/train.py",
    )


def screen(style: Style, served: Course | None = None) -> str:
    return render_demo(demonstration(course(0.18), served or course(0.045, slow_batches=10)), style)


def test_a_ratio_is_that_of_the_last_rounds_and_of_the_whole_run() -> None:
    gain = gain_of(course(0.18), course(0.045, slow_batches=10))
    assert gain.end == pytest.approx(4.0)
    assert (gain.least, gain.most) == pytest.approx((4.0, 4.0))
    assert gain.whole == pytest.approx(60 * 0.18 / (10 * 0.18 + 50 * 0.045))


def test_a_slow_round_shows_in_the_spread_and_not_in_the_ratio() -> None:
    served = course(0.045)
    served.times_s[25:] = [time_s + 0.45 for time_s in served.times_s[25:]]
    gain = gain_of(course(0.18), served)
    assert gain.end == pytest.approx(4.0)
    assert gain.least == pytest.approx(2.0)


def test_the_same_words_where_stoker_is_slower() -> None:
    assert "0.50x plain python at the end" in screen(Style(width=100), course(0.36))


def test_losses_are_compared_as_they_were_printed() -> None:
    losses = [repr(0.1 * step) for step in range(STEPS)]
    changed = [*losses[:40], "4.000000000000001", *losses[41:]]
    assert first_difference(course(0.1, losses=losses), course(0.1, losses=losses)) == 0
    assert first_difference(course(0.1, losses=losses), course(0.1, losses=changed)) == 41
    shorter = course(0.1, losses=losses)
    del shorter.losses[-3:], shorter.times_s[-3:]
    assert first_difference(shorter, course(0.1, losses=losses)) == STEPS - 2


def test_losses_that_differ_are_named() -> None:
    changed = ["0.25"] * STEPS
    text = screen(Style(), course(0.045, losses=changed))
    assert "Losses      differ from step 1 on: 1.5 under plain python, 0.25 under stoker" in text


def test_a_busy_machine_is_said_to_be_one() -> None:
    shown = demonstration(course(0.18), course(0.045), load=7.9)
    assert "Note        the machine was busy (load 7.9)" in render_demo(shown, Style())
    assert "busy" not in screen(Style())


@pytest.mark.parametrize("width", [80, 100])
def test_a_terminal_of_24_rows_shows_all_of_it(width: int) -> None:
    lines = screen(Style(width=width)).splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= width
    assert not any(line.startswith("step ") for line in lines)


def test_what_it_says() -> None:
    text = screen(Style(width=80))
    for words in (
        "stoker demo · one program, run twice · 2 cores · 43.2 s",
        "Emulated    a read takes 40 ms, a training step 40 ms",
        "Before      python train.py     44.4 samples/s   180 ms a batch  2 workers",
        "After       stoker run train.py  178 samples/s  45.0 ms a batch  2 → 9 workers",
        "Ratio       4.00x plain python at the end (4.00x to 4.00x over 5 rounds)",
        "2.67x over all 60 steps, from the start: 10.8 s → 4.05 s",
        "Losses      identical: all 60, to the last digit",
        "Report      stoker-runs/20261123-100000-demo-4711/report.html",
    ):
        assert words in text


def test_bars_are_as_long_as_the_rates() -> None:
    plain, served = (line.strip().count("█") for line in screen(Style(width=80)).splitlines()[7:10:2])
    assert (plain, served) == (17, 68)


def test_workers_over_time() -> None:
    rows = screen(Style(width=80)).splitlines()[-8:-4]
    assert [row[12:15] for row in rows] == ["9 ┤", "  ┤", "  ┤", "0 └"]
    # Two of nine, six and nine, each a whole number of eighths of a row.
    assert {row[20] for row in rows[:3]} == {" ", "▅"}
    assert [row[15:].count("█") for row in rows[:3]] == sorted(row[15:].count("█") for row in rows[:3])
    assert rows[-1].endswith("─ 4.05 s")


def test_without_colour_and_without_unicode() -> None:
    text = screen(Style(width=80, unicode=False))
    assert text.isascii()
    assert "2 -> 9 workers" in text
    assert "\x1b" not in text
    assert "\x1b[" in screen(Style(width=80, color=True))
