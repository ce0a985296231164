"""The order: torch's draws, draw for draw; and from every point on, what the uninterrupted iteration would give."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from stoker.core.errors import ResumeError
from stoker.feed.order.cursor import Cursor, inner_sampler, own_generator
from stoker.feed.order.sampling import Order, blank_cursor, draws_lazily, num_free
from stoker.feed.program import WorkItem
from stoker.records import events
from stoker.run.loaders import patch
from stoker.run.loaders.serving import Serving
from stoker.run.settings import RunSettings

N = 23
DATA = list(range(N))


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Lazy(Sampler[int]):
    """Draws from the main stream whenever it is asked."""

    def __init__(self, length: int = N) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return (int(torch.randint(N, ())) for _ in range(self.length))


class Buckets(Sampler[list[int]]):
    """A batch sampler of its own, with batches of different sizes."""

    def __iter__(self) -> Iterator[list[int]]:
        order = iter(torch.randperm(N).tolist())
        for size in (1, 5, 2, 7, 3, 5):
            yield [next(order) for _ in range(size)]


SAMPLERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialSampler(DATA),
    "random": lambda: RandomSampler(DATA),
    "random, replacement": lambda: RandomSampler(DATA, replacement=True, num_samples=70),
    "random, more than once": lambda: RandomSampler(DATA, num_samples=60),
    "random, fewer": lambda: RandomSampler(DATA, num_samples=9),
    "random, own generator": lambda: RandomSampler(DATA, generator=generator()),
    "random, replacement, own generator": lambda: RandomSampler(DATA, True, 70, generator=generator()),
    "subset": lambda: SubsetRandomSampler(range(3, 20)),
    "subset, own generator": lambda: SubsetRandomSampler(range(3, 20), generator=generator()),
    "weighted": lambda: WeightedRandomSampler([1.0, 2.0, 3.0] * 5, 40),
    "distributed": lambda: DistributedSampler(DATA, 3, 1, shuffle=True, seed=5),
    "range": lambda: range(N),
    "list": lambda: DATA[::-1],
    "lazy": Lazy,
}
INDEX_SAMPLERS: dict[str, Callable[[], Any]] = {
    **{f"{name}, batches": lambda make=make: BatchSampler(make(), 4, False) for name, make in SAMPLERS.items()},
    **{f"{name}, full batches": lambda make=make: BatchSampler(make(), 4, True) for name, make in SAMPLERS.items()},
    **{f"{name}, single": make for name, make in SAMPLERS.items()},
    "buckets": Buckets,
}


def order_over(index_sampler: Any, name: str, cursor: Cursor | None = None) -> Order:
    return Order(index_sampler, iter(index_sampler), auto_collation="single" not in name, cursor=cursor)


def rest_of(order: Order) -> list[WorkItem]:
    return list(iter(order.draw, None))


def saved(order: Order) -> Cursor:
    """Through JSON, as a checkpoint would."""
    cursor = order.cursor(iteration=2, base_seed=11)
    return msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(cursor))), Cursor)


@pytest.mark.parametrize("name", INDEX_SAMPLERS)
@settings(max_examples=25)
@given(taken=st.integers(0, 8), ahead=st.integers(0, 5), seed=st.integers(0, 5))
def test_going_on_equals_the_uninterrupted_iteration(name: str, taken: int, ahead: int, seed: int) -> None:
    """Indices, positions, and the main stream afterwards, when the program puts that back as it was."""
    torch.manual_seed(seed)
    order = order_over(INDEX_SAMPLERS[name](), name)
    for _ in range(taken):
        if order.draw() is not None:
            order.advance()
    due = [item for item in (order.draw() for _ in range(ahead)) if item is not None]
    cursor, main = saved(order), torch.get_rng_state()
    due += rest_of(order)
    main_after = torch.get_rng_state()

    torch.set_rng_state(main)
    index_sampler = INDEX_SAMPLERS[name]()
    resumed = order_over(index_sampler, name, cursor)
    for _ in range(ahead):
        resumed.draw()
    assert name.startswith("lazy") or torch.equal(torch.get_rng_state(), main), "what was drawn is not drawn again"
    torch.set_rng_state(main)
    resumed = order_over(INDEX_SAMPLERS[name](), name, cursor)
    assert rest_of(resumed) == due
    assert torch.equal(torch.get_rng_state(), main_after)
    assert (resumed.yielded, resumed.next_item, resumed.samples) == (order.yielded, order.next_item, order.samples)


@pytest.mark.parametrize("name", INDEX_SAMPLERS)
def test_draws_are_torchs(name: str) -> None:
    torch.manual_seed(9)
    plain = list(INDEX_SAMPLERS[name]())
    main = torch.get_rng_state()
    torch.manual_seed(9)
    drawn = rest_of(order_over(INDEX_SAMPLERS[name](), name))
    assert [item.indices for item in drawn] == plain
    assert torch.equal(torch.get_rng_state(), main)


@given(seed=st.integers(0, 2**63 - 1), replacement=st.booleans(), num=st.integers(1, 80), skip=st.integers(0, 90))
def test_the_seed_that_a_random_sampler_drew_is_known_without_drawing(
    seed: int, replacement: bool, num: int, skip: int
) -> None:
    torch.manual_seed(seed)
    sampler = RandomSampler(DATA, replacement=replacement, num_samples=num)
    order = Order(sampler, iter(sampler), auto_collation=False)
    whole = [order.draw()]
    cursor = order.cursor(iteration=0, base_seed=0)
    assert cursor.seed is not None
    assert cursor.generator is None
    whole += rest_of(order)
    cursor.next_item = cursor.yielded = cursor.samples = min(skip, num)
    resumed = Order(sampler, iter(()), auto_collation=False, cursor=cursor)
    assert rest_of(resumed) == [item for item in whole if item is not None][skip:]


@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_another_number_of_ranks_covers_each_sample_once(before: int, after: int) -> None:
    data = list(range(120))

    def order_of(world: int, rank: int, cursor: Cursor | None = None) -> Order:
        sampler = DistributedSampler(data, world, rank, seed=3)
        sampler.set_epoch(4)
        batches = BatchSampler(sampler, 2, False)
        return Order(batches, iter(batches), auto_collation=True, cursor=cursor)

    seen: list[int] = []
    cursors: list[Cursor] = []
    for rank in range(before):
        order = order_of(before, rank)
        for _ in range(5):
            item = order.draw()
            assert item is not None
            seen += item.indices
            order.advance()
        cursors.append(saved(order))
    for rank in range(after):
        seen += [index for item in rest_of(order_of(after, rank, cursors[0])) for index in item.indices]
    assert sorted(seen) == data


@settings(max_examples=60)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.data())
def test_items_taken_out_of_order_come_neither_twice_nor_never(choices: list[int], data: st.DataObject) -> None:
    """``in_order=False``: the program takes any of the items in flight."""
    torch.manual_seed(0)
    sampler = BatchSampler(RandomSampler(range(100)), 3, False)
    order = Order(sampler, iter(sampler), auto_collation=True)
    items: dict[int, WorkItem] = {}
    taken: list[int] = []
    for choice in choices:
        while len(items) - len(taken) < 6:
            items[len(items)] = order.draw() or pytest.fail("100 samples are enough")
        waiting = [number for number in items if number not in taken]
        taken.append(waiting[choice])
        first_open = min(set(items) - set(taken), default=len(items))
        order.taken.clear()
        order.taken.update(number for number in taken if number > first_open)
        order.advance(first_open)
    cursor = saved(order)
    resumed = Order(sampler, iter(sampler), auto_collation=True, cursor=cursor)
    rest = dict(enumerate(rest_of(resumed), start=cursor.next_item))
    assert {number: item for number, item in rest.items() if number in items} == {
        number: item for number, item in items.items() if number >= cursor.next_item
    }
    got = [index for number in taken for index in items[number].indices]
    got += [index for number, item in rest.items() if number not in resumed.taken for index in item.indices]
    assert sorted(got) == list(range(100))


class TestLookahead:
    @pytest.mark.parametrize("name", ["sequential", "random", "subset", "weighted", "distributed", "range", "list"])
    def test_known_samplers_may_be_drawn_ahead(self, name: str) -> None:
        assert draws_lazily(BatchSampler(SAMPLERS[name](), 2, False)) == ""
        assert draws_lazily(SAMPLERS[name]()) == ""

    @pytest.mark.parametrize("name", ["random, own generator", "subset, own generator", "lazy"])
    def test_others_may_not_and_the_reason_names_them(self, name: str) -> None:
        sampler = SAMPLERS[name]()
        assert type(sampler).__name__ in draws_lazily(BatchSampler(sampler, 2, False))

    @pytest.mark.parametrize("name", INDEX_SAMPLERS)
    def test_free_items_touch_no_generator_behind_the_first(self, name: str) -> None:
        index_sampler = INDEX_SAMPLERS[name]()
        free = num_free(index_sampler)
        if free is None:
            return
        own = own_generator(inner_sampler(index_sampler)) or torch.default_generator
        drawn = iter(index_sampler)
        next(drawn)
        states = torch.get_rng_state(), own.get_state()
        assert len(list(itertools.islice(drawn, max(0, free - 1)))) == max(0, free - 1)
        assert torch.equal(states[0], torch.get_rng_state())
        assert torch.equal(states[1], own.get_state())

    @pytest.mark.parametrize(
        ("name", "free"),
        [
            ("random, own generator", 5),
            ("random, replacement, own generator", 0),
            ("subset, own generator", 4),
            ("random", None),
            ("lazy", 0),
        ],
    )
    def test_how_many_are_free(self, name: str, free: int | None) -> None:
        assert num_free(BatchSampler(SAMPLERS[name](), 4, False)) == free

    @pytest.mark.parametrize("drop_last", [False, True])
    @pytest.mark.parametrize("even", [False, True])
    @pytest.mark.parametrize("split", [False, True])
    @pytest.mark.parametrize("ranks", [1, 2, 4])
    def test_accelerates(self, ranks: int, split: bool, even: bool, drop_last: bool) -> None:
        from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler

        for length in range(1, 50):
            sampler = SeedableRandomSampler(range(length), data_seed=7)
            batches = BatchSampler(sampler, 4, drop_last)
            index_sampler: Any = batches
            if ranks > 1:
                index_sampler = BatchSamplerShard(batches, ranks, ranks - 1, split, even)
            free = num_free(index_sampler)
            assert free == max(0, len(index_sampler) - 1)
            drawn = iter(index_sampler)
            if not free:
                continue
            next(drawn)
            state = sampler.generator.get_state()
            list(itertools.islice(drawn, free - 1))
            assert torch.equal(state, sampler.generator.get_state())
            assert sampler.epoch == 0
            list(drawn)
            assert sampler.epoch == 1

    @pytest.mark.integration
    @pytest.mark.parametrize("stop", [3, 9, 10, 11, 12])
    def test_a_generator_of_the_programs_is_touched_when_torch_touches_it(self, stop: int) -> None:
        """Many workers are kept busy all the same, and an iteration left early leaves it as torch's would."""

        def states() -> list[Any]:
            shared = generator()
            loader = DataLoader(range(48), 4, shuffle=True, num_workers=1, prefetch_factor=2, generator=shared)
            found: list[Any] = []
            for _ in range(2):
                for step, batch in enumerate(loader, start=1):
                    found.append((batch.tolist(), shared.get_state().tolist()))
                    if step == stop:
                        break
            return found

        expected = states()
        seen: list[events.AnyEvent] = []
        serving = Serving(RunSettings.of(workers=4), [seen.append])
        patch.install(serving)
        try:
            assert states() == expected
        finally:
            patch.remove()
            serving.close()
        assert max(event.capacity for event in seen if isinstance(event, events.Progress)) >= 8

    def test_subclasses_of_known_samplers_may_draw_as_they_like(self) -> None:
        class Mine(RandomSampler):
            def __iter__(self) -> Iterator[int]:
                return (random.randrange(N) for _ in range(N))

        assert "Mine" in draws_lazily(Mine(DATA))


class TestCursor:
    def test_between_iterations(self) -> None:
        loader = DataLoader(DATA, batch_size=4, shuffle=True)
        cursor = blank_cursor(loader.batch_sampler)
        assert cursor.finished
        assert cursor.iteration == -1

    def test_at_the_end_only_a_generator_of_the_programs_own_is_kept(self) -> None:
        for name, kept in (("random", False), ("subset", False), ("random, own generator", True)):
            order = order_over(SAMPLERS[name](), "single")
            rest_of(order)
            order.finished = True
            assert (saved(order).generator is not None) is kept

    @pytest.mark.parametrize("name", ["sequential", "random", "random, replacement", "distributed", "range"])
    def test_known_samplers_need_less_than_300_bytes(self, name: str) -> None:
        order = order_over(BatchSampler(SAMPLERS[name](), 4, False), name)
        order.draw()
        assert len(json.dumps(msgspec.to_builtins(order.cursor(iteration=2**31, base_seed=2**63 - 1)))) < 300

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"sampler": "Lazy"}, "must be of a loader with RandomSampler, got one of Lazy"),
            ({"length": 5}, "length 23, got 5"),
            ({"format": 0}, "must have format 1, got 0"),
        ],
    )
    def test_a_cursor_of_another_loader_is_refused(self, change: dict[str, Any], message: str) -> None:
        order = order_over(RandomSampler(DATA), "single")
        order.draw()
        cursor = msgspec.structs.replace(saved(order), **change)
        with pytest.raises(ResumeError, match=message):
            order_over(RandomSampler(DATA), "single", cursor)

    def test_a_damaged_generator_state_is_refused(self) -> None:
        order = order_over(SubsetRandomSampler(DATA), "single")
        order.draw()
        cursor = msgspec.structs.replace(saved(order), generator=b"short")
        with pytest.raises(ResumeError, match="must hold a generator's state, got 5 bytes"):
            order_over(SubsetRandomSampler(DATA), "single", cursor)

    def test_a_distributed_sampler_at_another_epoch_or_seed(self) -> None:
        order = order_over(SAMPLERS["distributed"](), "single")
        order.draw()
        cursor = saved(order)
        other = DistributedSampler(DATA, 3, 1, seed=5)
        other.set_epoch(1)
        with pytest.raises(ResumeError, match=r"call `sampler.set_epoch\(0\)`"):
            order_over(other, "single", cursor)
        with pytest.raises(ResumeError, match="with seed 6, got 5"):
            order_over(DistributedSampler(DATA, 3, 1, seed=6), "single", cursor)

    def test_a_sampler_that_raises_is_heard(self) -> None:
        def broken() -> Iterator[int]:
            yield 1
            raise OSError("index file is gone")

        order = Order([1, 2], broken(), auto_collation=False)
        assert order.draw() is not None
        with pytest.raises(OSError, match="index file is gone"):
            order.draw()


@given(limits=st.lists(st.integers(0, 12), max_size=12))
def test_nothing_is_drawn_beyond_a_limit(limits: list[int]) -> None:
    sampler = BatchSampler(SequentialSampler(DATA), 2, drop_last=False)
    order = Order(sampler, iter(sampler), auto_collation=True)
    drawn: list[int] = []
    for limit in [*sorted(limits), None]:
        order.limit = limit
        while (work := order.draw()) is not None:
            drawn += work.indices
            assert limit is None or order.drawn <= limit
        assert order.exhausted is (limit is None)
    assert drawn == DATA
