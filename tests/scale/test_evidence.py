import random

import pytest

from stoker.feed.scaling import Observation
from stoker.scale.evidence import WindowHistory, estimate


def window(now_s: float, **changes: object) -> Observation:
    base: dict[str, object] = {
        "workers": 2,
        "depth": 2,
        "steps": 25,
        "items": 25,
        "starved_frac": 0.0,
        "input_wait_frac": 0.0,
        "blocked_frac": 0.5,
        "step_s": 0.01,
        "item_wall_s": 0.01,
        "item_cpu_s": 0.01,
        "batch_bytes": 0,
        "worker_bytes": 0,
    }
    return Observation(now_s=now_s, **{**base, **changes})  # pyright: ignore[reportArgumentType]


def test_variation_of_single_values_comes_back_from_window_means():
    rng = random.Random(0)
    points: list[tuple[float, int]] = []
    for _ in range(400):
        values = [rng.lognormvariate(-0.5, 1.0) for _ in range(10)]
        points.append((sum(values) / 10, 10))
    got = estimate(points)
    assert got.mean == pytest.approx(1.0, rel=0.1)
    assert got.cv == pytest.approx(1.31, rel=0.2)


def test_a_changed_cost_drops_the_windows_before_it():
    history = WindowHistory()
    history.restart(2)
    for i in range(20):
        history.observe(window(0.25 * i))
    for i in range(20, 24):
        history.observe(window(0.25 * i, item_wall_s=0.03, steps=8, items=8))
    view = history.view()
    assert view is not None
    assert view.windows == 4
    assert view.wall.mean == pytest.approx(0.03)


def test_a_pause_of_the_program_is_no_step():
    history = WindowHistory()
    history.restart(2)
    for i in range(20):
        history.observe(window(0.25 * i))
    for i in range(20, 140):
        history.observe(window(0.25 * i, steps=0, items=0, step_s=0.0, blocked_frac=1.0))
    assert history.silent_s == pytest.approx(30.0)
    history.observe(window(35.0, steps=25, step_s=1.2))
    for i in range(141, 160):
        history.observe(window(0.25 * i))
    view = history.view()
    assert view is not None
    assert view.step.mean < 0.02
    assert view.blocked_frac == pytest.approx(0.5)


def test_slow_steps_are_not_taken_for_pauses():
    history = WindowHistory()
    history.restart(2)
    for i in range(1, 100):
        done = i % 8 == 0
        history.observe(window(0.25 * i, steps=int(done), items=int(done), step_s=2.0 if done else 0.0))
    view = history.view()
    assert view is not None
    assert view.span_s > 15.0
    assert view.step_s == pytest.approx(2.0, rel=0.15)


def test_work_conservation_gives_the_needed_workers():
    history = WindowHistory()
    history.restart(2)
    for i in range(10):
        history.observe(window(0.25 * i, input_wait_frac=0.5, blocked_frac=0.0, step_s=0.01, steps=12, items=12))
    view = history.view()
    assert view is not None
    assert view.needed == pytest.approx(4.0)


def test_workers_that_wait_for_a_queue_to_empty_are_not_spare():
    history = WindowHistory()
    history.restart(9)
    for i in range(10):  # delivered from what was made before; few items are asked for meanwhile
        seen = {"workers": 9, "blocked_frac": 0.9, "step_s": 0.075, "item_wall_s": 0.45, "steps": 4, "items": 1}
        history.observe(window(0.3 * i, **seen))
    view = history.view()
    assert view is not None
    assert view.needed == pytest.approx(6.0, rel=0.05)


def test_time_that_somebody_else_served_is_no_gap():
    """Torch's turns in a comparison: windows before and behind them add up, where a gap would begin anew."""
    history, begun_anew = WindowHistory(), WindowHistory()
    for number in range(8):
        history.observe(window(5.0 * number, paused_s=5.0 - 0.25, window_s=0.25))
        begun_anew.observe(window(5.0 * number, window_s=0.25))
    view = history.view()
    assert view is not None
    assert view.windows > 4
    assert begun_anew.view() is None or begun_anew.view().windows < 2  # pyright: ignore[reportOptionalMemberAccess]
