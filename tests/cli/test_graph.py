import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from stoker.cli.main import main as stoker
from stoker.records.events import RunEnded
from stoker.records.runlog import Run
from tests.ui.cuts import images, nothing_moves
from tests.ui.timeline import make_header, opened, write_run


def main(*argv: str) -> int:
    return stoker(["graph", *argv])


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a run of two loaders that have cuts, the first of two variants."""
    monkeypatch.chdir(tmp_path)
    last, other = nothing_moves(), images()
    last.variant = 1
    other.loader, other.saved_s = 1, 0.001
    events = [opened(0), opened(1), images(), last, other, RunEnded(t_s=9.0, outcome="finished")]
    write_run(Run(header=make_header(), events=events), tmp_path / "stoker-runs" / "cut")
    return tmp_path


@pytest.mark.usefixtures("runs")
def test_latest_run_is_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    text = capsys.readouterr().out
    assert text.startswith("Cut of loader 0 (train.py:41), variant 0")
    assert "x3 = avg_pool2d(x2)" in text
    assert "2 other cuts in this run: --loader 0 --variant 1 (stayed), --loader 1 --variant 0 (moved)" in text


@pytest.mark.usefixtures("runs")
def test_another_loader_and_another_variant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("cut", "--loader", "1") == 0
    assert capsys.readouterr().out.startswith("Cut of loader 1 (train.py:47), variant 0")
    assert main("stoker-runs/cut", "--loader", "0", "--variant", "1") == 0
    assert capsys.readouterr().out.startswith("Cut of loader 0 (train.py:41), variant 1")


@pytest.mark.usefixtures("runs")
def test_json_is_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("cut", "--format", "json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["type"] == "cut_chosen"
    assert [node["place"] for node in record["nodes"]].count("moved") == 4


@pytest.mark.usefixtures("runs")
def test_a_run_explains_its_cuts_beside_its_loaders(capsys: pytest.CaptureFixture[str]) -> None:
    assert stoker(["explain", "cut"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "cut: 4 of 5 stateless calls moved to data workers" in text
    assert stoker(["explain", "--json", "cut"]) == 0
    cuts = json.loads(capsys.readouterr().out)["cuts"]
    assert sorted(cuts) == ["0", "1"]


def test_the_ending_of_the_file_is_the_format(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("cut", "-o", "cut.svg") == 0
    assert capsys.readouterr().out.startswith("wrote cut.svg (")
    ElementTree.fromstring((runs / "cut.svg").read_text())
    assert main("cut", "--format", "svg") == 0
    assert capsys.readouterr().out == (runs / "cut.svg").read_text()
    assert main("cut", "-o", "cut.txt") == 0
    assert (runs / "cut.txt").read_text().startswith("Cut of loader 0")


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["nope"], "`nope` is not a run folder"),
        (["cut", "--loader", "7"], "`--loader` must be one with a cut (0, 1), got 7"),
        (["cut", "--loader", "1", "--variant", "3"], "`--variant` must be one that was recorded (0), got 3"),
        (["cut", "-o", "no/such/folder/cut.svg"], "`-o` must name a file that can be written"),
    ],
)
def test_errors_are_one_line(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(*argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (Run(header=make_header(), events=[RunEnded(t_s=1.0, outcome="finished")]), "iterated over no loader"),
        (Run(header=make_header(), events=[opened(tier="stock")]), "left to torch"),
        (Run(header=make_header(config={"cut": "off"}), events=[opened()]), "it ran with `--cut off`; run it without"),
        (Run(header=make_header(), events=[opened()]), "let it run for longer: stoker run train.py --lr 0.1"),
    ],
)
def test_a_run_without_a_cut_says_what_to_do(
    run: Run, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(run, tmp_path / "run")
    assert main(str(tmp_path / "run")) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
