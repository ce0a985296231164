import dataclasses

from stoker.scale.evidence import Estimate, View
from stoker.scale.limits import Limit
from stoker.scale.memory import RETRY_S, Memory


def view(wall_s: float = 0.04, step_s: float = 0.01, wall_cv: float = 0.0) -> View:
    return View(
        workers=2.0,
        span_s=10.0,
        total_s=10.0,
        windows=40,
        steps=200,
        items=200,
        wait_frac=1.0 - 200 * step_s / 10.0,
        blocked_frac=0.0,
        step=Estimate(step_s, 0.0, 200),
        wall=Estimate(wall_s, wall_cv, 200),
        cpu_s=0.02,
    )


def with_ceiling() -> Memory:
    memory = Memory()
    memory.refresh(view(), 2, 2.0, 0.0)
    memory.set_ceiling(Limit(2, "no more"), 2.0, 0.0)
    memory.raise_floor(2)
    return memory


def test_a_ceiling_holds_while_conditions_do():
    memory = with_ceiling()
    assert not memory.refresh(view(wall_s=0.05), 2, 2.0, 10.0)
    assert memory.ceiling is not None
    assert memory.ceiling.limit.workers == 2


def test_new_costs_void_what_was_learned():
    memory = with_ceiling()
    assert memory.refresh(view(wall_s=0.07), 2, 2.0, 10.0)
    assert memory.ceiling is None
    assert memory.floor == 1


def test_costs_that_change_with_the_number_of_workers_prove_nothing():
    memory = with_ceiling()
    assert not memory.refresh(view(wall_s=0.07), 3, 2.0, 10.0)
    assert memory.ceiling is not None


def test_noise_is_no_change():
    memory = with_ceiling()
    assert not memory.refresh(view(wall_s=0.07, wall_cv=4.0), 2, 2.0, 10.0)
    assert memory.ceiling is not None


def test_a_ceiling_is_tried_again_later_and_later():
    memory = with_ceiling()
    memory.refresh(view(), 2, 2.0, RETRY_S + 1.0)
    assert memory.ceiling is None
    memory.set_ceiling(Limit(2, "no more"), 2.0, 400.0)
    memory.refresh(view(), 2, 2.0, 400.0 + RETRY_S + 1.0)
    assert memory.ceiling is not None


def test_more_cores_void_a_ceiling():
    memory = with_ceiling()
    memory.refresh(view(), 2, 3.0, 1.0)
    assert memory.ceiling is None


def test_few_items_teach_nothing():
    memory = Memory()
    memory.refresh(dataclasses.replace(view(), items=3), 2, 2.0, 0.0)
    assert not memory.known
