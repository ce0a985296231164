"""Next commands for programs that no command can start: lines of a notebook."""

from __future__ import annotations

import pytest

from stoker.ui.advice import NO_BATCH, LimitingResource, Situation, advise, find_limit
from stoker.ui.windows import RecordedWindow, Split


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
    assert advise(situation([], run, **config), LimitingResource(kind=kind, text="")).command == command


def test_of_a_script() -> None:
    found = advise(situation(["train.py", "a b"]), LimitingResource(kind="input-growing", text=""))
    assert found.command == "stoker run train.py 'a b'"


@pytest.mark.parametrize(
    ("run", "config", "command"),
    [
        ("runs/a", {"comm": "auto"}, "stoker exchange runs/a"), ("runs/a", {"fit": "auto"}, "stoker explain runs/a"),
        ("", {"comm": "auto"}, "stoker doctor"), ("runs/a", {"comm": "off", "fit": "off"}, "stoker doctor"),
    ],
)  # fmt: skip
def test_without_loaders(run: str, config: dict[str, object], command: str) -> None:
    """A program whose step is served is told of that, not to look for a fault of its machine."""
    assert advise(situation(["train.py"], run, **config), LimitingResource(kind="none", text="")).command == command


def window(wait: float, workers: int = 2, cores_used: float = 1.0) -> RecordedWindow:
    """A window with this share of input wait; the rest is compute."""
    split = Split(input_wait_frac=wait, h2d_frac=0.0, compute_frac=1.0 - wait, other_frac=0.0)
    return RecordedWindow(
        from_s=0.0, to_s=10.0, first_batch=0, batches=100, samples=800, active_s=10.0, batches_per_s=10.0,
        samples_per_s=80.0, split=split, starved_frac=0.9, workers=workers, depth=2, handover_frac=None,
        worker_busy_frac=1.0, worker_cpu_frac=0.9, cores_used=cores_used,
    )  # fmt: skip


def waiting(wait: float, tier: str = "elastic", reason: str = "", settled: str = "", **window_: float) -> Situation:
    return Situation(
        program=["train.py"], run="runs/a", cores=8.0, config={}, tier=tier, reason=reason, settled=settled,
        window=window(wait, **window_), window_missing="", growing=False,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wait", "workers", "cores_used", "most"),
    [(0.8, 2, 1.0, "5.0x"), (0.99, 2, 2.0, "4.0x"), (0.75, 0, 0.0, "4.0x")],
    ids=["until the program is busy", "until the cores are", "from the training process"],
)
def test_a_loader_kept_back_by_random_numbers_alone_is_told_the_setting_and_its_gain(
    wait: float, workers: int, cores_used: float, most: str
) -> None:
    tier = "pinned" if workers else "process"
    reason = "`dataset.rng` draws random numbers (`--random sample` seeds it for each sample)"
    found = waiting(wait, tier, reason, workers=workers, cores_used=cores_used)
    advice = advise(found, find_limit(found))
    assert advice.command == "stoker run --random sample train.py"
    assert f"up to {most} as fast" in advice.why


def test_a_loader_kept_back_by_something_else_is_not() -> None:
    found = waiting(0.8, "pinned", "its samples depend on their worker")
    assert advise(found, find_limit(found)).command == "stoker explain runs/a"


def test_a_small_wait_is_not_called_the_limit() -> None:
    assert find_limit(waiting(0.06)).kind == "compute"
    assert find_limit(waiting(0.12)).kind == "input-workers"


def test_workers_that_are_not_increased_say_why() -> None:
    text = find_limit(waiting(0.5, settled="a third one brought nothing")).text
    assert text.endswith("2 workers are busy, on 1.0 of 8 cores (a third one brought nothing)")
