"""`stoker explain` of a program, which it ends at its first loader, and of a run's records."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.records.events import LoaderOpened
from stoker.records.explanation import Explanation
from stoker.ui.explanation import render_explanation
from stoker.ui.report_text import Style
from tests.warm import programs

PROGRAM = Path(__file__).parent / "programs" / "loaders.py"
SOURCE = str(Path(stoker.__file__).parents[1])


def run_stoker(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "stoker", *map(str, words)]
    return programs.run(command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.mark.integration
class TestProgram:
    def test_every_loader_is_explained_and_nothing_else_happens(self, tmp_path: Path) -> None:
        done = run_stoker("explain", "--json", PROGRAM, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines() == ["the program speaks"]
        found = json.loads(done.stdout)
        loaders = found["loaders"]
        tiers = [(loader["dataset"], loader["declared_workers"], loader["tier"]) for loader in loaders]
        assert tiers == [
            ("Augmented", 2, "elastic"),
            ("Squares", 2, "elastic"),
            ("Squares", 0, "elastic"),
            ("Augmented", 0, "process"),
            ("Counting", 2, "pinned"),
            ("Stream", 2, "pinned"),
            ("Stream", 0, "process"),
            ("Named", 1, "elastic"),
        ]
        assert found["first"] == 0
        lines = PROGRAM.read_text().splitlines()
        sites = [int(loader["site"].rpartition(":")[2]) for loader in loaders]
        assert all("DataLoader(" in lines[site - 1] for site in sites)
        assert sites == sorted(sites)
        assert "for _ in loader" in lines[int(found["at"].rpartition(":")[2]) - 1]
        assert "a seed of each sample" in loaders[0]["evidence"][-1]
        assert f"{PROGRAM}:" in loaders[4]["evidence"][0]
        assert "not probed" in loaders[7]["evidence"][-1]
        assert not (tmp_path / "drawn").exists()
        # The two declared and the two moved sides of the probe, first samples only; the apart side makes them twice.
        assert {int(line) for line in (tmp_path / "made").read_text().split()} == {0, 1, 2, 3}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["made"]

    def test_settings_and_arguments_reach_the_program(self, tmp_path: Path) -> None:
        done = run_stoker("explain", "--tier", "pinned", "--json", PROGRAM, "second", cwd=tmp_path)
        found = json.loads(done.stdout)
        assert found["first"] == 1
        assert {loader["tier"] for loader in found["loaders"]} == {"pinned", "process"}
        assert "asked for by `--tier pinned`" in found["loaders"][1]["reason"]

    def test_module(self, tmp_path: Path) -> None:
        (tmp_path / "shown.py").write_text(PROGRAM.read_text())
        done = run_stoker("explain", "-m", "shown", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("-m shown: 8 loaders when the program first iterates over one, at shown.py:")

    @pytest.mark.parametrize(
        ("arguments", "status", "message"),
        [
            (("early",), 3, "ended with status 3 before it iterated over a DataLoader"),
            (("none",), 2, "must iterate over a torch DataLoader to be explained, and ended without"),
        ],
    )
    def test_a_program_without_iteration(
        self, arguments: tuple[str, ...], status: int, message: str, tmp_path: Path
    ) -> None:
        done = run_stoker("explain", PROGRAM, *arguments, cwd=tmp_path)
        assert done.returncode == status
        assert message in done.stderr
        assert done.stdout == ""

    @pytest.mark.slow("a child that starts python and torch")
    @pytest.mark.parametrize("where", ["child", "thread"])
    def test_no_process_goes_on(self, where: str, tmp_path: Path) -> None:
        done = run_stoker("explain", "--json", PROGRAM, where, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["loaders"]) == 8
        assert done.stderr.splitlines() == ["the program speaks"]

    @pytest.mark.slow("two ranks start python and torch")
    def test_ranks_end_together(self, tmp_path: Path) -> None:
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        done = run_stoker("explain", "--json", *torchrun, PROGRAM, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["world_size"], len(found["loaders"])) == (2, 8)
        assert "saves its model" not in done.stderr

    def test_run(self, tmp_path: Path) -> None:
        done = run_stoker("run", "--quiet", "--run-dir", "records", PROGRAM, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        as_json = run_stoker("explain", "--json", "records", cwd=tmp_path)
        loaders: list[dict[str, Any]] = json.loads(as_json.stdout)["loaders"]
        tiers = [loader["tier"] for loader in loaders]
        # The third declares no workers: how long its batches take decides, and here they take no time.
        assert tiers == ["elastic", "elastic", tiers[2], "process", "pinned", "pinned", "process", "elastic"]
        assert [loader["loader"] for loader in loaders] == list(range(8))
        as_text = run_stoker("explain", "records", cwd=tmp_path)
        assert f"{shlex.quote(str(PROGRAM))}: 8 loaders used" in as_text.stdout
        assert "loader 4 made at" in as_text.stdout


class TestWords:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("nowhere",), "`nowhere` is neither a program nor a run"),
            ((), "holds no run"),
            (("nowhere", "--lr"), "must be a program to be followed by arguments"),
            (("--rank", "x", "nowhere"), "`--rank` must be followed by a number"),
            (("--rank", "1", "train.py"), "`--rank` must go with a run"),
            (("--off", "train.py"), "`off` must not be set"),
            (("--wrokers", "2", "train.py"), "did you mean `--workers`"),
        ],
    )
    def test_refusals(
        self,
        words: tuple[str, ...],
        message: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        from stoker.cli.explain import main

        monkeypatch.chdir(tmp_path)
        assert main(list(words)) == 2
        assert message in capsys.readouterr().err

    def test_text_keeps_paths_whole(self) -> None:
        loader = LoaderOpened(
            t_s=0.0, loader=0, site="train.py:3", dataset="Photos", length=None, batch_size=None, declared_workers=1,
            tier="pinned", reason="sample 0 differs", evidence=[f"Photos.__getitem__ (/a/long/path/{'x' * 90}.py:3)"],
        )  # fmt: skip
        text = render_explanation(Explanation(program=["train.py"], loaders=[loader]), Style(width=60))
        assert "/a/long/path/" + "x" * 90 + ".py:3" in text
        assert "Photos, 1 worker declared" in text
