"""The choice over nested units against all choices and against an integer programme; more budget is never slower."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from stoker.perf.memory.choice.tree_choice import Repeat, StepPart, choose_parts
from stoker.records.fitting import Keeps

REPEATS = st.lists(
    st.builds(
        Repeat, keeps=st.sampled_from(("nothing", "products")), saves=st.integers(-5, 50),
        seconds=st.integers(1, 9).map(float), need=st.integers(0, 120),
    ),
    max_size=2, unique_by=lambda repeat: repeat.keeps,
).map(tuple)  # fmt: skip
GAPS = st.builds(StepPart, name=st.just(""), need=st.integers(0, 120))


@st.composite
def sequences(draw: st.DrawFn, depth: int = 2, most: int = 4) -> tuple[StepPart, ...]:
    """Parts with unique names, some with parts inside."""
    numbers = itertools.count()

    def level(depth: int, most: int) -> tuple[StepPart, ...]:
        found: list[StepPart] = []
        for _ in range(draw(st.integers(1, most))):
            if draw(st.booleans()):
                found.append(draw(GAPS))
            inside = level(depth - 1, 2) if depth > 1 and draw(st.booleans()) else ()
            found.append(StepPart(f"u{next(numbers)}", draw(st.integers(0, 120)), draw(REPEATS), inside))
        return tuple(found)

    return level(depth, most)


Choice = dict[str, Keeps]


def choices(parts: Sequence[StepPart]) -> Iterator[Choice]:
    """Every choice, by trying."""
    if not parts:
        yield {}
        return
    first, rest = parts[0], parts[1:]
    own: list[Choice] = list(choices(first.inside)) if first.inside else [{}]
    own += [{first.name: repeat.keeps} for repeat in first.repeats]
    for each in own:
        for others in choices(rest):
            yield {**each, **others}


def cost(parts: Sequence[StepPart], choice: Choice, saved: int = 0) -> tuple[int, float, int]:
    """Most bytes, seconds and saved bytes of a choice, straight from what a part says."""
    most, seconds = 0, 0.0
    for part in parts:
        taken = next((repeat for repeat in part.repeats if choice.get(part.name) == repeat.keeps), None)
        if taken is not None:
            most, seconds, saved = max(most, taken.need - saved), seconds + taken.seconds, saved + taken.saves
        elif part.inside:
            inner, added, saved = cost(part.inside, choice, saved)
            most, seconds = max(most, inner), seconds + added
        else:
            most = max(most, part.need - saved)
    return most, seconds, saved


@given(parts=sequences(), budget=st.integers(0, 130))
def test_it_is_the_quickest_of_all_that_fit(parts: tuple[StepPart, ...], budget: int) -> None:
    fitting = [cost(parts, each)[1] for each in choices(parts) if cost(parts, each)[0] <= budget]
    found = choose_parts(parts, budget)
    assert (found is None) == (not fitting)
    if found is not None:
        most, seconds, _ = cost(parts, found)
        assert most <= budget
        assert seconds == min(fitting)


@given(parts=sequences(), budget=st.integers(0, 120), more=st.integers(0, 60))
def test_more_budget_is_never_slower(parts: tuple[StepPart, ...], budget: int, more: int) -> None:
    first, second = choose_parts(parts, budget), choose_parts(parts, budget + more)
    if first is not None:
        assert second is not None
        assert cost(parts, second)[1] <= cost(parts, first)[1]


def line(count: int, seed: int) -> tuple[StepPart, ...]:
    """Uneven units with both ways, as models have them."""
    draw = np.random.default_rng(seed)
    parts: list[StepPart] = []
    alive = 0
    for place in range(count):
        kept = int(draw.integers(10**6, 10**8))
        alive += kept
        transient = int(draw.integers(10**6, 3 * 10**7))
        seconds = float(draw.uniform(0.5, 5.0))
        ways = (
            Repeat("nothing", kept, seconds, alive + transient),
            Repeat("products", kept // 2, seconds * float(draw.uniform(0.05, 0.5)), alive + transient),
        )
        parts.append(StepPart(f"u{place}", alive + transient, ways))
    return (*parts, StepPart("", alive + 10**7))


def by_programme(parts: Sequence[StepPart], budget: int) -> float | None:
    """Least seconds by mixed integer programming: one of three ways for each unit."""
    units = [part for part in parts if part.repeats]
    size = 2 * len(units)
    costs = np.array([repeat.seconds for unit in units for repeat in unit.repeats])
    saves = np.array([repeat.saves for unit in units for repeat in unit.repeats], dtype=float)
    rows, limits = [], []
    for place in range(len(units)):
        row = np.zeros(size)
        row[2 * place : 2 * place + 2] = 1
        rows.append(row)
        limits.append(1.0)
    at = 0
    for part in parts:
        row = np.zeros(size)
        row[: 2 * at] = -saves[: 2 * at]
        rows.append(row)
        limits.append(float(budget - part.need))  # both ways need what keeping needs
        at += bool(part.repeats)
    found = milp(
        costs, constraints=LinearConstraint(np.array(rows), ub=np.array(limits)), integrality=np.ones(size),
        bounds=Bounds(0, 1), options={"mip_rel_gap": 0.0},
    )  # fmt: skip
    return float(found.fun) if found.success else None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.9, 0.6, 0.4])
def test_it_is_that_of_an_integer_programme(seed: int, share: float) -> None:
    parts = line(12, seed)
    budget = int(share * max(part.need for part in parts))
    found, exact = choose_parts(parts, budget), by_programme(parts, budget)
    assert (found is None) == (exact is None)
    if found is not None:
        assert cost(parts, found)[1] == pytest.approx(exact, rel=1e-6)


def test_two_hundred_uneven_units_take_half_a_second() -> None:
    parts = line(200, 7)
    budget = int(0.5 * max(part.need for part in parts))
    begun = time.process_time()
    found = choose_parts(parts, budget)
    assert time.process_time() - begun < 1.0, "twice the bar, for a machine that is busy"
    assert found is not None
    most, seconds, _ = cost(parts, found)
    assert most <= budget
    bound = by_programme(parts, budget)
    assert bound is not None
    assert seconds <= 1.01 * bound
