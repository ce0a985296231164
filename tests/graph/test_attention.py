"""A loop that does nothing with its batches is hardly watched, and is watched again once it does something."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils.data import Sampler

from stoker.graph.cut_control import RECORDED_STEPS, SKIPPED_BATCHES, Cutter
from stoker.graph.leaves import leaves_of
from stoker.graph.recording.recorder import Recorder
from stoker.graph.watching.attention import WatchBackoff
from stoker.graph.watching.step_watcher import Conductor
from tests.faults.serve import loader_of, served
from tests.graph.loop import FREE, Source, everything
from tests.graph.test_step_watcher import OWNERS, follow
from tests.graph.test_substitution import batches

LONGEST = 1 << WatchBackoff.DOUBLINGS


def watched() -> bool:
    return torch._C._len_torch_function_stack() > 0


def bodies(source: Source, first: int, count: int) -> list[bool]:
    """Whether each body of an empty loop was watched."""
    found: list[bool] = []
    for number in range(first, first + count):
        batch = source.ask(number)  # noqa: F841 - held until the next one is there, as by a loop
        found.append(watched())
    return found


def test_pauses_double_up_to_a_bound_and_end_with_a_step_that_is_used():
    attention, pauses = WatchBackoff(), list[int]()
    for _ in range(1000):
        attention.saw(used=False)
        pauses.append(attention.pause)
    assert pauses[:12] == [0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 128]
    assert max(pauses) == LONGEST
    attention.saw(used=True)
    assert not attention.idle
    assert attention.pause == 0


def test_an_empty_loop_is_hardly_watched():
    source = Source(batches, everything, "pickled")
    assert any(bodies(source, 0, 600)), "it is looked at from time to time"
    found = bodies(source, 600, 1000)
    assert 5 <= sum(found) <= 3 * len(found) / LONGEST
    source.cutter.left()
    assert not watched()


def test_steps_that_use_their_batches_after_all_are_found():
    source = Source(batches, everything, "pickled")
    bodies(source, 0, 1000)
    for number in range(1000, 1000 + LONGEST + RECORDED_STEPS + 4):
        x, _ = source.ask(number)
        assert torch.equal(torch.log1p(torch.sin(x) + 1.5), torch.log1p(torch.sin(batches(number)[0]) + 1.5))
    assert source.verdicts[-1].outcome == "moved"
    before = source.prepared
    bodies(source, 2000, 600)
    assert source.prepared > before
    assert sum(bodies(source, 2600, 640)) <= 20, "nor is one whose batches are prepared"
    source.cutter.left()


def test_steps_on_batches_that_were_fetched_ahead_are_found_after_a_pause():
    source = Source(batches, everything, "pickled")
    bodies(source, 0, 500)
    for _, (x, _) in source.batches(2 * LONGEST, ahead=3):
        torch.log1p(torch.sin(x) + 1.5)
    assert source.verdicts[-1].outcome == "moved"
    source.cutter.left()


def test_a_batch_that_waits_for_its_step_is_not_held():
    conductor = Conductor()
    cutter = Cutter(conductor, lambda _: None, lambda _: None, FREE, tried=False)
    alive: list[Any] = []
    for _ in range(SKIPPED_BATCHES + RECORDED_STEPS):
        cutter.asked()
        batch = cutter.delivered(torch.rand(3))
        alive.append(weakref.ref(batch))
    assert watched()
    assert [ref() is not None for ref in alive] == [False] * (len(alive) - 1) + [True]
    cutter.left()


def test_a_recorder_holds_its_batch_from_the_first_touch_on():
    batch = torch.rand(3)
    recorder, alive = Recorder([batch], (), 0), weakref.ref(batch)
    assert leaves_of(batch)[0] is batch
    recorder.call(torch.sin, (), (batch,), {}, lambda function, args, kwargs: function(*args, **kwargs))
    del batch
    assert recorder.began
    assert not recorder.dropped
    assert alive() is not None
    waiting = Recorder([torch.rand(3)], (), 0)
    assert waiting.dropped


def test_a_recorder_holds_no_memory_that_a_step_has_written_to():
    batch, memory = torch.rand(3), torch.zeros(1000)
    recorder, alive = Recorder([batch], (), 0), weakref.ref(memory.untyped_storage())
    run = lambda function, args, kwargs: function(*args, **kwargs)  # noqa: E731
    recorder.call(torch.Tensor.add_, (), (memory, recorder.call(torch.sum, (), (batch,), {}, run)), {}, run)
    del memory
    assert alive() is None


def test_what_a_loader_calls_is_no_part_of_a_step():
    conductor = Conductor()
    other, _ = follow(conductor, OWNERS["other"], calls=9)
    torch.sin(other.tensor)
    conductor.asked(OWNERS["loader"])
    assert not watched()
    torch.cos(other.tensor)
    conductor.resume()
    torch.exp(other.tensor)
    assert other.seen == ["sin", "exp"]
    conductor.close()
    assert not watched()


def test_the_program_goes_on_being_watched_after_an_error_of_the_loader():
    source = Source(batches, everything, "pickled")
    for number in range(SKIPPED_BATCHES + 1):
        x, _ = source.ask(number)
    source.cutter.asked()
    assert not watched()
    source.cutter.failed()
    assert watched()
    torch.sin(x)
    source.cutter.left()
    assert not watched()


class Looking(Sampler[int]):
    """A sampler of the program's own, which is drawn from inside ``next``: sees whether that is watched."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def __len__(self) -> int:
        return 64

    def __iter__(self):
        for index in range(64):
            self.found.append(torch._C._len_torch_function_stack())
            yield index


class Rows:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


@pytest.mark.integration
@pytest.mark.timeout(60)
def test_nothing_inside_next_is_watched():
    """On a real loader: while its steps are recorded, one of them is under way, and one waits."""
    sampler, in_body = Looking(), list[int]()
    with served(workers=1):
        for batch in loader_of(Rows(), batch_size=2, num_workers=1, sampler=sampler):
            in_body.append(torch._C._len_torch_function_stack())
            torch.sin(batch)
    assert sum(in_body) >= RECORDED_STEPS
    assert sampler.found == [0] * 64
    assert not watched()


@pytest.mark.integration
@pytest.mark.timeout(60)
def test_a_step_goes_on_being_watched_behind_another_loaders_end():
    """On real loaders: a step that validates before it uses its batch."""
    behind: list[bool] = []
    with served(workers=1):
        inner = loader_of(Rows(), batch_size=32, num_workers=1)
        for number, batch in enumerate(loader_of(Rows(), batch_size=2, num_workers=1)):
            if number == SKIPPED_BATCHES:
                list(inner)
                behind.append(watched())
            torch.sin(batch)
    assert behind == [True]
    assert not watched()
