"""Next commands for programs that no command can start: lines of a notebook."""

from __future__ import annotations

import pytest

from stoker.ui.advice import NO_BATCH, Limit, Situation, advise


def situation(program: list[str], run: str = "", **config: object) -> Situation:
    return Situation(
        program=program, run=run, cores=4.0, config=config, tier="elastic", reason="", window=None,
        window_missing=NO_BATCH, growing=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "run", "config", "command"),
    [
        ("unknown", "", {}, "with stoker.feeding(off=True):"),
        ("input-growing", "", {}, "with stoker.feeding():"),
        ("input-cpu", "", {"cpu_budget": 2}, "with stoker.feeding(cpu_budget=4):"),
        ("input-workers", "", {"workers": 1}, "with stoker.feeding(workers=None):"),
        ("input-workers", "", {"max_workers": 1}, "with stoker.feeding(max_workers=2):"),
        ("input-tier", "runs/a", {}, "stoker.explain(loader)"),
        ("compute", "runs/a", {}, "!stoker report runs/a --html report.html"),
        ("compute", "", {}, 'with stoker.feeding(run_dir="FOLDER"):'),
        ("none", "", {}, "!stoker doctor"),
    ],
)
def test_in_a_notebook(kind: str, run: str, config: dict[str, object], command: str) -> None:
    assert advise(situation([], run, **config), Limit(kind=kind, text="")).command == command


def test_of_a_script() -> None:
    found = advise(situation(["train.py", "a b"]), Limit(kind="input-growing", text=""))
    assert found.command == "stoker run train.py 'a b'"
