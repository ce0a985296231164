"""Samples that end their workers twice: named, or left out as far as the policy allows, and never anything else."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Subset

from stoker.core import seeds
from stoker.core.errors import SampleKillsWorkerError
from stoker.feed.program import Iteration, Tier, WorkItem
from stoker.feed.shell.quarantine import Quarantine, path_of
from stoker.feed.state.ledger import Item

ITERATION = Iteration(ordinal=3, base_seed=77, tier=Tier.ELASTIC)
CAUSE = "killed by signal: SIGSEGV"


@dataclass(frozen=True)
class Death:
    """Of a worker."""

    pid: int = 4711
    cause: str = CAUSE


DEATH = Death()


class Images:
    """Keeps its files as torchvision's folders do."""

    def __init__(self) -> None:
        self.samples = [(f"/data/{n}.jpg", n % 2) for n in range(50)]


@dataclass
class Told:
    """Listens."""

    calls: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])

    def sample_quarantined(self, index: object, path: str, seed: int, action: str) -> None:
        self.calls.append((index, path, seed, action))


def quarantine(policy: Literal["raise", "skip", "replace"], cap: int = 16, **options: Any) -> tuple[Quarantine, Told]:
    told = Told()
    return Quarantine(Images(), 2, policy, cap, told, **options), told


def item(indices: Any, start: int = 40) -> Item:
    return Item(5, WorkItem(indices=indices, start=start))


class TestRaise:
    def test_names_index_file_seed_and_the_command_that_makes_it_again(self) -> None:
        found, told = quarantine("raise")
        with pytest.raises(SampleKillsWorkerError) as caught:
            found.judge(item([9, 4, 7]), 1, DEATH, ITERATION)
        seed = seeds.sample_seed(77, 3, 41, 4)
        assert caught.value.fields["index"] == 4
        assert caught.value.fields["path"] == "/data/4.jpg"
        assert caught.value.fields["seed"] == seed
        assert str(caught.value).startswith("DataLoader worker (pid(s) 4711) exited unexpectedly: ")
        for words in ("sample 4", "/data/4.jpg", CAUSE, str(seed), "--on-bad-sample skip"):
            assert words in str(caught.value)
        assert told.calls == []

    def test_a_death_between_samples_blames_the_batch(self) -> None:
        with pytest.raises(SampleKillsWorkerError, match=r"the batch of indices \[1, 2\]"):
            quarantine("skip")[0].judge(item([1, 2]), -1, DEATH, ITERATION)

    def test_a_long_batch_is_shortened(self) -> None:
        with pytest.raises(SampleKillsWorkerError) as caught:
            quarantine("raise")[0].judge(item(list(range(10_000))), -1, DEATH, ITERATION)
        assert len(str(caught.value)) < 600

    def test_a_stream_has_no_index(self) -> None:
        with pytest.raises(SampleKillsWorkerError, match="a sample of the stream"):
            quarantine("skip")[0].judge(item([None, None]), 0, DEATH, ITERATION)


class TestLeavingOut:
    def test_skip(self) -> None:
        found, told = quarantine("skip")
        work = found.judge(item([9, 4, 7]), 1, DEATH, ITERATION)
        assert [work.indices[k] for k in work.sources()] == [9, 7]
        assert told.calls == [(4, "/data/4.jpg", seeds.sample_seed(77, 3, 41, 4), "skip")]

    def test_replace_keeps_the_size_of_the_batch(self) -> None:
        work = quarantine("replace")[0].judge(item([9, 4, 7]), 2, DEATH, ITERATION)
        assert len(work.sources()) == 3
        assert 7 not in [work.indices[k] for k in work.sources()]

    def test_no_more_than_the_cap(self) -> None:
        found, told = quarantine("skip", cap=2)
        for index in (1, 2):
            found.judge(item([index, 40]), 0, DEATH, ITERATION)
        with pytest.raises(SampleKillsWorkerError, match="2 samples were left out already"):
            found.judge(item([3, 40]), 0, DEATH, ITERATION)
        assert len(told.calls) == 2

    def test_the_last_sample_of_a_batch_is_not_left_out(self) -> None:
        with pytest.raises(SampleKillsWorkerError, match="no other sample of its batch is left"):
            quarantine("skip")[0].judge(item([3]), 0, DEATH, ITERATION)

    @pytest.mark.parametrize("policy", ["skip", "replace"])
    def test_later_epochs_know_it(self, policy: Literal["skip", "replace"]) -> None:
        found, _ = quarantine(policy)
        found.judge(item([9, 4, 7]), 1, DEATH, ITERATION)
        later = found.apply(WorkItem(indices=[1, 4, 2], start=0))
        assert 4 not in [later.indices[k] for k in later.sources()]
        untouched = WorkItem(indices=[1, 2], start=0)
        assert found.apply(untouched).sources() == [0, 1]

    @given(
        st.lists(st.integers(0, 30), min_size=1, max_size=8),
        st.lists(st.integers(0, 7), max_size=8),
        st.sampled_from(["skip", "replace"]),
    )
    def test_any_sequence_of_deaths(self, indices: list[int], deaths: list[int], policy: Any) -> None:
        found, _ = quarantine(policy)
        one = item(indices)
        bad: set[int] = set()
        for position in (p for p in dict.fromkeys(deaths) if p < len(indices)):
            try:
                one.work = found.judge(one, position, DEATH, ITERATION)
            except SampleKillsWorkerError:
                assert set(range(len(indices))) == bad | {position}
                return
            bad.add(position)
        sources = one.work.sources()
        assert not bad & set(sources)
        assert len(sources) == (len(indices) - len(bad) if policy == "skip" else len(indices))
        assert sources == sorted(sources) or policy == "replace"


class TestPath:
    def test_through_subsets(self) -> None:
        subset: Any = Subset(Subset(Images(), [5, 6, 7, 8]), [3, 1])  # type: ignore[arg-type]
        assert path_of(subset, 0) == "/data/8.jpg"

    @pytest.mark.parametrize("name", ["paths", "files", "filenames", "image_paths"])
    def test_under_the_usual_names(self, name: str) -> None:
        class Plain:
            pass

        data = Plain()
        setattr(data, name, [Path("/x/a.png"), Path("/x/b.png")])
        assert path_of(data, 1) == "/x/b.png"
        assert path_of(data, -1) == "/x/b.png"

    @pytest.mark.parametrize("index", [99, -99, "key", None, 1.5, (1, 2)])
    def test_an_index_that_says_nothing(self, index: Any) -> None:
        assert path_of(Images(), index) == ""

    @pytest.mark.parametrize("entries", [[1, 2], [()], "text", {"a": 1}, None, [[]]])
    def test_entries_that_are_no_paths(self, entries: Any) -> None:
        class Other:
            samples = entries

        assert path_of(Other(), 0) == ""
