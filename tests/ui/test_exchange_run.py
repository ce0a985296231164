"""The exchanges of a run as people see them."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from stoker.cli.exchange.main import main as exchange
from stoker.cli.explain import main as explain
from stoker.cli.report import main as report
from stoker.core.errors import RunFolderError
from stoker.perf.planning.measured_exchange import planned_exchange
from stoker.records.exchange import AgreedExchange, ExchangeRun, ExchangeRuns, LayerCounts, LayerMethod
from stoker.records.exchange_file import EXCHANGE_FILE, read_exchanges, write_exchanges
from stoker.ui.exchange.run_html import draw_exchanges
from stoker.ui.exchange.run_text import render_exchange_run, write_exchange_run
from stoker.ui.report_text import Style
from tests.perf.planning.test_measured_exchange import HEAD, TRUNK, measured
from tests.ui.timeline import make_header

GIVEN = AgreedExchange(methods=[LayerMethod(module="a", weight="a.weight", method="rows", rows=3)])


def run(**given: object) -> ExchangeRun:
    facts = {
        "name": "Net", "ranks": 2, "agreed": planned_exchange(measured([TRUNK, HEAD]), has_ring=True), "step": 6,
        "steps": 200, "gain": 0.4, "kept": True, "plain_step_s": 1.0, "planned_step_s": 0.6, "plain_bytes": 24.8e6,
        "planned_bytes": 8.3e6, "repaired": 0, "notes": ["Net: the planned exchange saves 40 % of a step, and stays"],
        "counts": [
            LayerCounts(
                weight="head.weight", method="late", steps=190, doubts={"its gradient holds more than the product": 4},
                left="",
            )
        ],
    }  # fmt: skip
    return ExchangeRun(**{**facts, **given})  # type: ignore[arg-type]


def test_the_text_has_the_verdict_both_steps_and_what_fell_back() -> None:
    text = render_exchange_run(run())
    for said in (
        "Exchange of Net · 2 ranks · gloo on cpu · plan ",
        "Kept after the trial: 2 layers by late-multiply, own ring, 8.3 MB a step of a rank instead of 24.8 MB",
        "a step takes 600 ms, 1.00 s without the plan",
        "as torch does it, predicted",
        "with the plan, measured      600 ms",
        "4 x its gradient holds more than the product",
        "saves 40 % of a step",
    ):
        assert said in text.replace("\n", " "), text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_what_is_not_exact_is_said() -> None:
    said = "sums were not exact, so losses differ from those of plain DDP"
    allowed = planned_exchange(measured([TRUNK, HEAD]), allowed=frozenset({"compress"}), has_ring=True)
    assert said in write_exchange_run(run(agreed=allowed))
    assert said not in write_exchange_run(run())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kept": False, "gain": -0.2}, "Given up after the trial: 2 layers by"),
        ({"gain": None}, "; the program ended during its trial"),
        ({"agreed": AgreedExchange(methods=[], note="nothing to save")}, "torch's own: nothing to save"),
        (
            {
                "agreed": GIVEN, "gain": None, "counts": [],
            },
            "1 layer by rows, 8.3 MB a step of a rank instead of 24.8 MB; followed without a trial",
        ),
    ],
)  # fmt: skip
def test_each_outcome_has_its_words(given: dict[str, object], said: str) -> None:
    assert said in write_exchange_run(run(**given))
    assert said in " ".join(render_exchange_run(run(**given), Style(width=80)).split())


def test_the_page_has_a_section_that_is_well_formed() -> None:
    section = draw_exchanges(ExchangeRuns(replicas=[run(name="<Net>"), run(counts=[], planned_step_s=0.0)]))
    ElementTree.fromstring(section.replace("class=n", 'class="n"'))
    assert "&lt;Net&gt;" in section
    assert section.count('class="bars"') == 2
    assert section.count('class="tiles"') == 1, "without a step by the plan there is nothing to compare"
    assert "Not taken: all-reduce (" in section
    assert "All layers: 16 bits: not allowed (--comm-allow compress)." in section
    assert "4 x its gradient holds more than the product" in section
    assert "Methods that the program gave" in draw_exchanges(
        ExchangeRuns(replicas=[run(agreed=GIVEN, gain=None, counts=[])])
    )
    nothing = run(agreed=AgreedExchange(methods=[], note="nothing to save"))
    assert "Methods" not in draw_exchanges(ExchangeRuns(replicas=[nothing], notes=["<none> was made"]))
    assert "&lt;none&gt; was made." in draw_exchanges(ExchangeRuns(notes=["<none> was made"]))
    assert draw_exchanges(ExchangeRuns()) == ""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs that exchanged, and a later one that did not."""
    monkeypatch.chdir(tmp_path)
    for place, name in enumerate(("first", "second", "other")):
        made = tmp_path / "stoker-runs" / name
        made.mkdir(parents=True)
        (made / "run.json").write_bytes(msgspec.json.encode(make_header()))
        (made / "events.jsonl").touch()
        if name != "other":
            write_exchanges(made, ExchangeRuns(replicas=[run(name=name)]))
            os.utime(made / EXCHANGE_FILE, (1e9 + place, 1e9 + place))
    return tmp_path / "stoker-runs"


def test_a_run_is_found_by_name_by_folder_or_as_the_latest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, name in (([], "second"), (["first"], "first"), ([str(folder / "first")], "first"),
                        ([str(folder)], "second"), ([f"stoker-runs/first/{EXCHANGE_FILE}"], "first")):  # fmt: skip
        assert exchange(words) == 0
        assert f"Exchange of {name} · 2 ranks" in capsys.readouterr().out
    assert exchange(["first", "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=ExchangeRuns)
    assert found == read_exchanges(folder / "first")


def test_report_and_explain_have_it_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report([str(folder / "first")]) == 0
    assert "Kept after the trial" in capsys.readouterr().out
    assert report([str(folder / "first"), "--html", "-"]) == 0
    assert "Exchange of gradients" in capsys.readouterr().out
    assert explain([str(folder / "first")]) == 0
    assert "exchange of first: Kept after the trial" in capsys.readouterr().out
    assert report([str(folder / "other"), "--html", "-"]) == 0
    assert "Exchange of gradients" not in capsys.readouterr().out


def test_a_run_without_replicas_says_why_everywhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_exchanges(folder / "first", ExchangeRuns(notes=["this program made none"]))
    for show in (exchange, report, explain):
        assert show([str(folder / "first")]) == 0
        assert "this program made none" in capsys.readouterr().out


def test_what_is_no_run_or_cannot_be_read_has_its_line(folder: Path) -> None:
    for words, said in (
        (["other"], "no run that planned its exchange; make one with `stoker run --comm auto train.py`"),
        (["none"], "`none` is neither a program with `--ranks` and `--link`, nor a run folder"),
    ):
        with pytest.raises(RunFolderError, match=said):
            exchange(words)
    file = folder / "first" / EXCHANGE_FILE
    for content, said in ((b"{", "cannot be read"), (b'{"format": 9}', "has format 9, this stoker reads up to 1")):
        file.write_bytes(content)
        with pytest.raises(RunFolderError, match=said):
            exchange(["first"])


def test_words_of_a_program_are_no_run(tmp_path: Path) -> None:
    from stoker.cli.exchange.of_run import is_run

    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").touch()
    programs = ["train.py", "features.json", "models:make", str(tmp_path / "package"), str(tmp_path / "package.zip")]
    assert not any(itertools.compress(programs, map(is_run, programs)))
    assert all(map(is_run, ["", "stoker-runs", "2026-01-02-train", str(tmp_path), "stoker-runs/x/exchange.json"]))
