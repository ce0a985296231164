"""Traces of requests: files in two forms, what is wrong with one, and engines for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.core.errors import ConfigError
from stoker.records.events import AnyEvent, ServedWindow
from stoker.records.runlog import Run
from stoker.run.serving.arrivals import at_rate, rate_of, read_arrivals, recorded_arrivals
from stoker.sim.serving import Arrival
from tests.ui.timeline import make_header, write_run

COSTS = ["serve", "plan", "--costs", "1=1ms,32=4ms", "--p99", "20ms", "--json"]


def read(tmp_path: Path, text: str, samples: int = 1) -> list[Arrival]:
    path = tmp_path / "arrivals.csv"
    path.write_text(text)
    return read_arrivals(path, samples)


def test_both_forms(tmp_path: Path) -> None:
    wanted = [Arrival(0.0, 2), Arrival(0.5, 3), Arrival(0.5, 2)]
    assert read(tmp_path, "10\n\n# pause\n10.5,3\n10.5\n", samples=2) == wanted
    assert read(tmp_path, "\ufeffmodel,samples,at_s\r\na,,10\r\na,3,10.5\r\na,,10.5\r\n", samples=2) == wanted


def test_the_same_requests_at_another_rate(tmp_path: Path) -> None:
    found = read(tmp_path, "1\n2\n5\n")
    assert rate_of(found) == 0.5
    assert [each.at_s for each in at_rate(found, 5.0)] == pytest.approx([0.0, 0.1, 0.4])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", r"must have 2 requests at different times at least, got 0; a line is a time"),
        ("at_s\n", r"must have 2 requests at different times at least, got 0"),
        ("3\n3\n", r"must have 2 requests at different times at least, got 2"),
        ("1\n3\n2\n", r"line 3 must not be before the one above it, at 3 s, got 2; sort it"),
        ("-1\n3\n", r"line 1 must be a time of at least 0 in seconds, got '-1'"),
        ("1\nnan\n", r"line 2 must be a time of at least 0 in seconds, got 'nan'"),
        ("1\ninf\n", r"line 2 must be a time"),
        ("1\nsoon\n", r"line 2 must be a time of at least 0 in seconds, got 'soon'"),
        ("1,0\n2\n", r"line 1 must have at least 1 sample, got '0'"),
        ("at_s,samples\n1,2.5\n2,1\n", r"line 2 must have at least 1 sample, got '2.5'"),
        ("time,samples\n1,2\n", r"must name a column at_s in its first line, got time, samples"),
    ],
)
def test_what_is_wrong_with_a_trace(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read(tmp_path, text)


def test_bursts_need_more_engines_than_the_same_rate_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """2,000 requests a second either way."""
    path = tmp_path / "bursts"
    path.write_text("".join(f"{burst}\n" * 500 for burst in (0.0, 0.25, 0.5, 0.75, 1.0)))
    counts: list[int] = []
    for words in (["--rate", "2000"], ["--arrivals", str(path)], ["--arrivals", str(path), "--rate", "100"]):
        assert main([*COSTS, *words]) == 0
        (one,) = json.loads(capsys.readouterr().out)
        counts.append(one["count"])
    assert counts[0] < counts[1]
    assert one["requests"] == 2500
    assert main([*COSTS[:-1], "--arrivals", str(path)]) == 0
    assert "shed of 2,500" in capsys.readouterr().out
    assert main(COSTS) == 2
    assert "`--rate` or `--arrivals` must be given" in capsys.readouterr().err
    assert main([*COSTS, "--arrivals", str(tmp_path / "none")]) == 2
    assert "`--arrivals` must be a run folder or a text file that can be read" in capsys.readouterr().err


def second(at_s: int, *, model: str = "digits", **outcomes: int) -> ServedWindow:
    return ServedWindow(
        t_s=float(at_s), model=model, version="1", seconds=1.0, outcomes=outcomes, p50_s=None, p99_s=None, batch=None,
        waiting=0, engines=1, retries=0,
    )  # fmt: skip


def test_a_run_gives_the_requests_of_each_second() -> None:
    """Refused and dropped ones came as well; malformed ones asked nothing of an engine."""
    events = [second(1, answered=300), second(2), second(3, answered=20, refused=10, dropped=7, malformed=1000)]
    found = recorded_arrivals(Path("run"), events, samples=4)
    assert found == recorded_arrivals(Path("run"), events, "digits", samples=4)
    assert [each.at_s for each in found] == sorted(each.at_s for each in found)
    assert found[0].at_s == 0.0
    assert {each.samples for each in found} == {4}
    assert len(found) == 337
    assert sum(each.at_s <= 1.0 for each in found) == 300
    assert sum(each.at_s > 1.0 + 1.0 - 1 / 30 for each in found) >= 37 - 5


@pytest.mark.parametrize(
    ("events", "model", "told"),
    [
        ([], None, r"must be a run of `stoker serve`, got one that served nothing"),
        ([second(1, answered=9), second(1, model="b", answered=9)], None, r"one of b, digits, got several models"),
        ([second(1, answered=9)], "other", r"`--served` must name .* one of digits, got other"),
        ([second(1, answered=1)], None, r"must have 2 requests at different times at least, got 1; serve longer"),
    ],
)
def test_what_is_wrong_with_a_run(events: list[ServedWindow], model: str | None, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        recorded_arrivals(Path("run"), events, model)


def test_a_run_is_found_by_its_folder_or_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    events: list[AnyEvent] = [second(at, model=model, answered=100 + 100 * at) for at in (1, 2) for model in ("a", "b")]
    write_run(Run(header=make_header(), events=events), Path("stoker-runs", "recorded"))
    for words in ("recorded", "stoker-runs/recorded", "stoker-runs"):
        assert main([*COSTS, "--arrivals", words, "--served", "b"]) == 0
        (one,) = json.loads(capsys.readouterr().out)
        assert one["requests"] == 500
    assert main([*COSTS, "--arrivals", "recorded"]) == 2
    assert "one of a, b, got several models" in capsys.readouterr().err
    assert main([*COSTS, "--rate", "100", "--served", "b"]) == 2
    assert "`--served` must come with a run folder in `--arrivals`, got none" in capsys.readouterr().err
