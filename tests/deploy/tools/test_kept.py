"""Results of tools are made once, and refused when they are not what was kept."""

from pathlib import Path

import pytest

from stoker.core.errors import ToolError
from stoker.deploy.tools.kept import kept


def test_the_same_facts_are_worked_on_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "result").write_text("right")

    first = kept("netlist", ["a", "bc"], make, tmp_path)
    assert kept("netlist", ["a", "bc"], make, tmp_path) == first
    assert (first / "result").read_text() == "right"
    assert kept("netlist", ["ab", "c"], make, tmp_path) != first  # facts are not run together
    assert len(made) == 2


@pytest.mark.parametrize("damage", ["changed", "cut short", "gone", "added", "unsealed"])
def test_a_stale_result_is_refused(tmp_path: Path, damage: str) -> None:
    path = kept("placed", ["facts"], lambda folder: (folder / "report").write_text("100 MHz") and None, tmp_path)
    report = path / "report"
    match damage:
        case "changed":
            report.write_text("999 MHz")
        case "cut short":
            report.write_text("100")
        case "gone":
            report.unlink()
        case "added":
            (path / "more").write_text("")
        case _:
            (path / "seal").unlink()
    with pytest.raises(ToolError, match=r"must be what a tool made, and was changed since; remove it"):
        kept("placed", ["facts"], lambda _: None, tmp_path)


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise ToolError("`yosys` must end with status 0, got 1")

    with pytest.raises(ToolError, match="got 1"):
        kept("netlist", ["facts"], fail, tmp_path)
    assert not list(tmp_path.iterdir())
