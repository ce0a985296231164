import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.communication.overlap import Task, Transfer, overlapped

SECONDS = st.floats(0, 10)
SLOWDOWN = st.floats(0, 3)


@st.composite
def backward_passes(draw: st.DrawFn) -> tuple[list[Task], list[Transfer]]:
    """Tasks, and transfers that become ready as the tasks go on."""
    tasks = [Task(seconds) for seconds in draw(st.lists(SECONDS, max_size=8))]
    places = sorted(draw(st.lists(st.integers(0, len(tasks)), max_size=8)))
    return tasks, [Transfer(draw(SECONDS), place) for place in places]


@given(backward_passes(), SLOWDOWN)
def test_exposed_and_hidden_are_the_whole_exchange(work: tuple[list[Task], list[Transfer]], slowdown: float) -> None:
    tasks, transfers = work
    found = overlapped(tasks, transfers, slowdown)
    total, backward = sum(t.seconds for t in transfers), sum(t.seconds for t in tasks)
    assert found.exposed_s + found.hidden_s == pytest.approx(total)
    assert found.hidden_s >= -1e-9
    assert found.exposed_s >= max(0.0, total - backward) - 1e-9


@given(backward_passes(), SLOWDOWN, st.floats(1, 10))
def test_more_bandwidth_is_never_slower(
    work: tuple[list[Task], list[Transfer]], slowdown: float, factor: float
) -> None:
    tasks, transfers = work
    faster = [Transfer(transfer.seconds / factor, transfer.after) for transfer in transfers]
    assert overlapped(tasks, faster, slowdown).exposed_s <= overlapped(tasks, transfers, slowdown).exposed_s + 1e-9


@given(backward_passes(), SLOWDOWN, SLOWDOWN)
def test_a_larger_slowdown_is_never_faster(
    work: tuple[list[Task], list[Transfer]], slowdown: float, more: float
) -> None:
    tasks, transfers = work
    assert (
        overlapped(tasks, transfers, slowdown).exposed_s
        <= overlapped(tasks, transfers, slowdown + more).exposed_s + 1e-9
    )


def test_worked_by_hand() -> None:
    """Two layers of 3 s; a bucket of 2 s after the first, one of 4 s after the second: 10 s, of which 4 are exposed."""
    tasks = [Task(3.0), Task(3.0)]
    transfers = [Transfer(2.0, 1), Transfer(4.0, 2)]
    assert overlapped(tasks, transfers).exposed_s == pytest.approx(4.0)
    assert overlapped(tasks, transfers).hidden_s == pytest.approx(2.0)
    # Beside the first bucket a slowdown of 1 does 1 s of work in 2 s: the second layer ends at 7 s, all of it at 11 s.
    assert overlapped(tasks, transfers, 1.0).exposed_s == pytest.approx(5.0)
    assert overlapped(tasks, transfers, 1.0).total_s == pytest.approx(6.0)


def test_a_task_waits_for_what_it_needs() -> None:
    """A unit is gathered for 2 s and computed for 3 s, beside it the next gathered for 4 s, computed for 1 s: 7 s."""
    found = overlapped([Task(3.0, 1), Task(1.0, 2)], [Transfer(2.0), Transfer(4.0)])
    assert found.exposed_s == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("tasks", "transfers", "slowdown", "message"),
    [
        ([Task(1.0)], [Transfer(1.0, 2)], 0.0, "`transfers` must take time and follow tasks that exist"),
        ([Task(-1.0)], [], 0.0, "`tasks` must take time and need transfers that exist"),
        ([Task(1.0, 1)], [Transfer(1.0, 1)], 0.0, "`tasks` must not need transfers that follow them"),
        ([], [], -1.0, "`slowdown` must not be negative, got -1"),
    ],
)
def test_impossible_orders_are_refused(
    tasks: list[Task], transfers: list[Transfer], slowdown: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        overlapped(tasks, transfers, slowdown)
