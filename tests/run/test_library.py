"""stoker as a library: the drop-in loader and its state, one loader wrapped, all loaders of a block."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, DistributedSampler, IterableDataset, Sampler, get_worker_info

import stoker
from stoker.core.errors import ConfigError, ResumeError
from stoker.feed.state import trial
from stoker.run.loaders import patch
from tests.warm import programs

SOURCE = str(Path(stoker.__file__).parents[1])
pytestmark = pytest.mark.integration


class Numbers(Dataset[torch.Tensor]):
    """Sample i is i; which ones were made is written down, by whichever process makes them."""

    def __init__(self, length: int, record: Path | None = None) -> None:
        self.length = length
        self.record = record

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.record is not None:
            with self.record.open("a") as file:
                file.write(f"{index}\n")
        return torch.tensor([index])


class Noisy(Numbers):
    """Adds a random number, as an augmentation does."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, int(torch.randint(1_000_000, ()))])


class ByWorker(Numbers):
    """Depends on who makes it, so it is pinned."""

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        return torch.tensor([index, info.id if info is not None else -1])


class Slow(Numbers):
    """Worth a process: emulated work, a sleep."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.02)
        return torch.tensor([index])


class Shards(IterableDataset[int]):
    """Each worker reads its share; the shares are of different lengths."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        number, count = (info.id, info.num_workers) if info is not None else (0, 1)
        return iter(range(1000 * number, 1000 * number + 7 + 6 * (count - number)))


class Shuffled(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(20).tolist())


class Lazy(Sampler[int]):
    """Draws each index when it is asked for it, from the main stream."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return (int(torch.randint(1000, ())) for _ in range(self.length))


class Buckets(Sampler[list[int]]):
    """Batches of different sizes."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(21).tolist()
        start = 0
        for size in (1, 2, 3, 4, 5, 6):
            yield order[start : start + size]
            start += size


def plain(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


MAKERS: dict[str, Callable[[], stoker.DataLoader[Any]]] = {
    "in order": lambda: stoker.DataLoader(Numbers(23), batch_size=4, num_workers=2),
    "shuffled": lambda: stoker.DataLoader(Numbers(23), batch_size=4, shuffle=True, num_workers=2),
    "shuffled, drop_last": lambda: stoker.DataLoader(
        Numbers(23), batch_size=4, shuffle=True, num_workers=2, drop_last=True
    ),
    "random transforms": lambda: stoker.DataLoader(Noisy(23), batch_size=4, shuffle=True, num_workers=2),
    "own generator": lambda: stoker.DataLoader(
        Numbers(23), batch_size=4, shuffle=True, num_workers=2, generator=generator(5)
    ),
    "lazy sampler": lambda: stoker.DataLoader(Numbers(1000), batch_size=4, sampler=Lazy(23), num_workers=2),
    "batch sampler": lambda: stoker.DataLoader(Noisy(23), batch_sampler=Buckets(), num_workers=2),
    "no batches": lambda: stoker.DataLoader(Numbers(6), batch_size=None, shuffle=True, num_workers=2),
    "any order": lambda: stoker.DataLoader(Numbers(23), batch_size=4, shuffle=True, num_workers=2, in_order=False),
    "persistent": lambda: stoker.DataLoader(
        Numbers(23), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True
    ),
    "pinned": lambda: stoker.DataLoader(ByWorker(23), batch_size=4, shuffle=True, num_workers=2),
    "stream": lambda: stoker.DataLoader(Shards(), batch_size=3, num_workers=2),
    "no workers": lambda: stoker.DataLoader(Numbers(23), batch_size=4, shuffle=True),
    "no workers, random": lambda: stoker.DataLoader(Noisy(23), batch_size=4, shuffle=True),
    "no workers, lazy sampler": lambda: stoker.DataLoader(Numbers(1000), batch_size=4, sampler=Lazy(23)),
    "no workers, stream": lambda: stoker.DataLoader(Shards(), batch_size=3),
    "no workers, shuffled stream": lambda: stoker.DataLoader(Shuffled(), batch_size=3),
}


@pytest.mark.slow("an iteration for each point")
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("where", ["inside", "edges"])
def test_a_resumed_iteration_goes_on_as_the_uninterrupted_one(where: str, name: str) -> None:
    """From every point, the next epoch included; the program restores the main stream, as exact resumes need."""
    torch.manual_seed(1)
    loader = MAKERS[name]()
    states = [(loader.state_dict(), torch.get_rng_state())]
    batches: list[Any] = []
    for _ in range(2):
        for batch in loader:
            batches.append(batch.tolist())
            states.append((json.loads(json.dumps(loader.state_dict())), torch.get_rng_state()))
    # Inside the loop the last state of an epoch does not know yet that it was the last: that epoch resumes empty.
    length = len(batches) // 2
    for taken in {"inside": {1, length - 1}, "edges": {0, 2, length, length + 1}}[where]:
        resumed = MAKERS[name]()
        resumed.load_state_dict(states[taken][0])
        torch.set_rng_state(states[taken][1])
        rest = plain(resumed)
        due = batches[taken:length] if taken <= length else batches[taken:]
        assert (sorted(rest) if name == "any order" else rest) == (sorted(due) if name == "any order" else due)
        if 0 < taken <= length:
            assert plain(resumed) == batches[length:] or name == "any order", "the epoch after the resumed one"


class TestState:
    def test_at_the_end_of_an_epoch_the_next_one_follows(self) -> None:
        torch.manual_seed(1)
        loader = MAKERS["random transforms"]()
        plain(loader)
        state, rng = loader.state_dict(), torch.get_rng_state()
        second = plain(loader)
        resumed = MAKERS["random transforms"]()
        resumed.load_state_dict(state)
        torch.set_rng_state(rng)
        assert plain(resumed) == second

    def test_after_a_break(self) -> None:
        loader = MAKERS["shuffled"]()
        taken = [batch.tolist() for _, batch in zip(range(2), loader, strict=False)]
        state = loader.state_dict()
        resumed = MAKERS["shuffled"]()
        resumed.load_state_dict(state)
        assert sorted(n for batch in taken + plain(resumed) for [n] in batch) == list(range(23))

    def test_between_iter_and_the_first_batch(self) -> None:
        torch.manual_seed(4)
        loader = MAKERS["random transforms"]()
        iterator = iter(loader)
        state = loader.state_dict()
        resumed = MAKERS["random transforms"]()
        resumed.load_state_dict(state)
        assert plain(resumed) == plain(iterator)

    def test_small_for_known_samplers(self) -> None:
        loader = MAKERS["shuffled"]()
        next(iter(loader))
        assert len(json.dumps(loader.state_dict())) < 300
        assert len(pickle.dumps(loader.state_dict())) < 300

    def test_a_loaded_state_is_the_state_until_the_next_iteration(self) -> None:
        loader = MAKERS["shuffled"]()
        next(iter(loader))
        state = loader.state_dict()
        other = MAKERS["shuffled"]()
        other.load_state_dict(state)
        assert other.state_dict() == state

    def test_resumed_twice(self) -> None:
        torch.manual_seed(2)
        loader = MAKERS["random transforms"]()
        whole = plain(loader)
        torch.manual_seed(2)
        loader = MAKERS["random transforms"]()
        got: list[Any] = []
        for _ in range(6):
            got.append(next(iter(loader)).tolist())
            state = loader.state_dict()
            loader = MAKERS["random transforms"]()
            loader.load_state_dict(state)
        assert got == whole

    @pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on two cores torch warns of three workers
    @pytest.mark.parametrize("workers", [0, 1, 3])
    def test_another_number_of_workers(self, workers: int) -> None:
        torch.manual_seed(3)
        loader = MAKERS["shuffled"]()
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        resumed = stoker.DataLoader(Numbers(23), batch_size=4, shuffle=True, num_workers=workers)
        resumed.load_state_dict(state)
        assert plain(resumed) == plain(iterator)

    def test_skipped_samples_are_not_made(self, tmp_path: Path) -> None:
        def make(record: Path | None) -> stoker.DataLoader[Any]:
            return stoker.DataLoader(Numbers(400, record), batch_size=10, shuffle=True, num_workers=1)

        torch.manual_seed(3)
        loader = make(None)
        iterator = iter(loader)
        taken = [next(iterator).tolist() for _ in range(30)]
        state = loader.state_dict()
        resumed = make(tmp_path / "record")
        resumed.load_state_dict(state)
        assert plain(resumed) == plain(iterator)
        made = {int(line) for line in (tmp_path / "record").read_text().split()}
        assert made == set(range(400)) - {n for batch in taken for [n] in batch}

    def test_a_loader_without_workers_that_was_moved_to_some(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trial, "MAX_WATCH_FRAC", 0.5)  # on a busy machine, watching may take longer than else
        torch.manual_seed(8)
        loader = stoker.DataLoader(Slow(80), batch_size=1, shuffle=True)
        iterator = iter(loader)
        taken = [next(iterator).tolist() for _ in range(20)]
        assert loader.explain().tier == "elastic", loader.explain()
        state = loader.state_dict()
        resumed = stoker.DataLoader(Slow(80), batch_size=1, shuffle=True)
        resumed.load_state_dict(state)
        rest = plain(resumed)
        assert rest == plain(iterator)
        assert sorted(n for [[n]] in taken + rest) == list(range(80))

    @pytest.mark.parametrize("settings", [{"workers": 0}, {"tier": "pinned"}, {"workers": 3}], ids=str)
    def test_under_any_settings(self, settings: dict[str, Any]) -> None:
        torch.manual_seed(8)
        whole = plain(MAKERS["shuffled"]())
        torch.manual_seed(8)
        with stoker.feeding(**settings):
            loader = MAKERS["shuffled"]()
            taken = [batch.tolist() for _, batch in zip(range(2), loader, strict=False)]
            state = loader.state_dict()
            resumed = MAKERS["shuffled"]()
            resumed.load_state_dict(state)
            assert taken + plain(resumed) == whole

    @pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 4)])
    def test_another_number_of_ranks_makes_each_sample_once(self, before: int, after: int) -> None:
        def make(world: int, rank: int) -> stoker.DataLoader[Any]:
            sampler = DistributedSampler(Numbers(48), world, rank, seed=7)
            sampler.set_epoch(2)
            return stoker.DataLoader(Numbers(48), batch_size=2, sampler=sampler, num_workers=1)

        seen: list[int] = []
        states: list[Any] = []
        for rank in range(before):
            loader = make(before, rank)
            iterator = iter(loader)
            seen += [int(n) for _ in range(3) for n in next(iterator)]
            states.append(loader.state_dict())
        for rank in range(after):
            loader = make(after, rank)
            loader.load_state_dict(states[0])
            seen += [n for batch in plain(loader) for [n] in batch]
        assert sorted(seen) == list(range(48))

    @pytest.mark.filterwarnings("ignore:This DataLoader will create")
    def test_a_state_of_two_workers_streams_needs_two_workers(self) -> None:
        loader = MAKERS["stream"]()
        next(iter(loader))
        other = stoker.DataLoader(Shards(), batch_size=3, num_workers=3)
        other.load_state_dict(loader.state_dict())
        with pytest.raises(ResumeError, match="`num_workers` must be 2 as when the state was saved, got 3"):
            iter(other)
        assert other.state_dict() == loader.state_dict()  # still to be loaded, once that is put right

    def test_a_finished_stream_may_go_on_with_another_number_of_workers(self) -> None:
        loader = MAKERS["stream"]()
        plain(loader)
        other = stoker.DataLoader(Shards(), batch_size=3)
        other.load_state_dict(loader.state_dict())
        assert len(plain(other)) == 5

    @pytest.mark.parametrize(
        ("state", "message"),
        [
            ({}, "got a dict without a format"),
            ([], "got a list without a format"),
            (None, "got a NoneType without a format"),
            ({"format": 99}, "of format 1, got a format 99"),
            ({"format": 1}, "missing required field"),
            ({"format": 1, "iteration": "x", "sampler": "RandomSampler", "length": 23}, "Expected `int`, got `str`"),
            ({"format": 1, "iteration": 0, "sampler": "RandomSampler", "length": 23, "yielded": -4}, "`int` >= 0"),
            ({"format": 1, "iteration": 0, "sampler": "SequentialSampler", "length": 23}, "of a loader with RandomSam"),
            ({"format": 1, "iteration": 0, "sampler": "RandomSampler", "length": 22}, "length 23, got 22"),
        ],
    )
    def test_other_states_are_refused(self, state: Any, message: str) -> None:
        with pytest.raises(ResumeError, match=message):
            MAKERS["shuffled"]().load_state_dict(state)

    def test_a_wrong_epoch_names_the_call(self) -> None:
        def make() -> tuple[DistributedSampler[Any], stoker.DataLoader[Any]]:
            sampler = DistributedSampler(Numbers(20), 2, 0)
            return sampler, stoker.DataLoader(Numbers(20), batch_size=2, sampler=sampler, num_workers=1)

        sampler, loader = make()
        sampler.set_epoch(3)
        iterator = iter(loader)
        next(iterator)
        other_sampler, other = make()
        other.load_state_dict(loader.state_dict())
        with pytest.raises(ResumeError, match=r"call `sampler.set_epoch\(3\)`"):
            iter(other)
        other_sampler.set_epoch(3)
        assert plain(other) == plain(iterator)


class TestDataLoader:
    def test_is_torchs(self) -> None:
        loader = MAKERS["shuffled"]()
        assert isinstance(loader, torch.utils.data.DataLoader)
        assert loader.num_workers == 2
        assert set(vars(loader)) == set(vars(torch.utils.data.DataLoader(Numbers(3))))

    def test_same_batches_as_torchs(self) -> None:
        torch.manual_seed(6)
        ours = plain(MAKERS["shuffled"]())
        torch.manual_seed(6)
        assert ours == plain(torch.utils.data.DataLoader(Numbers(23), batch_size=4, shuffle=True))

    def test_pickles_and_copies(self) -> None:
        loader = MAKERS["in order"]()
        whole = plain(loader)
        for other in (pickle.loads(pickle.dumps(loader)), copy.copy(loader)):
            assert plain(other) == whole
            assert other.state_dict()["finished"]

    def test_explain(self) -> None:
        loader = MAKERS["shuffled"]()
        assert loader.explain().tier == "elastic"
        assert not loader.explain().settled
        plain(loader)
        found = loader.explain()
        assert found.settled
        assert "elastic" in repr(found)
        assert "same" in found.reason
        assert "because" in found._repr_html_()

    def test_random_transforms_are_said_to_be_others_than_torchs(self) -> None:
        loader = MAKERS["random transforms"]()
        plain(loader)
        assert "random numbers of its own seed (`--tier pinned`: torch's numbers)" in loader.explain().reason

    def test_stats(self) -> None:
        loader = MAKERS["shuffled"]()
        assert loader.stats().batches == 0
        assert "not iterated yet" in repr(loader.stats())
        plain(loader)
        found = loader.stats()
        assert (found.batches, found.samples, found.iterations, found.tier) == (6, 23, 1, "elastic")
        assert found.samples_per_s > 0
        assert 0 <= found.input_wait_frac <= 1
        assert json.loads(json.dumps(found.to_dict()))["declared_workers"] == 2
        assert "samples/s" in repr(found)

    @pytest.mark.parametrize(("name", "samples"), [("no workers", 23), ("no workers, drop_last", 20), ("buckets", 21)])
    def test_samples_made_in_the_program_are_counted_one_by_one(self, name: str, samples: int) -> None:
        loader = {
            "no workers": lambda: stoker.DataLoader(Numbers(23), batch_size=4),
            "no workers, drop_last": lambda: stoker.DataLoader(Numbers(23), batch_size=4, drop_last=True),
            "buckets": lambda: stoker.DataLoader(Numbers(23), batch_sampler=Buckets()),
        }[name]()
        plain(loader)
        assert loader.stats().samples == samples

    def test_stats_in_a_notebook_is_static_and_well_formed(self) -> None:
        loader = MAKERS["shuffled"]()
        plain(loader)
        html = loader.stats()._repr_html_()
        ET.fromstring(f"<div>{html}</div>")
        assert "script" not in html
        assert "http" not in html
        assert "Numbers" in html

    @pytest.mark.slow("a program imports torch")
    def test_a_loader_left_to_torch_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        script = (
            "import torch, stoker\n"
            "loader = stoker.DataLoader(list(range(4)), batch_size=2, num_workers=1)\n"
            "print([batch.tolist() for batch in loader])\n"
            "loader.state_dict()\n"
        )
        monkeypatch.setenv("STOKER_OFF", "1")
        monkeypatch.setenv("PYTHONPATH", SOURCE)
        done = programs.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert done.stdout == "[[0, 1], [2, 3]]\n"
        assert "`state_dict` needs an iterator of stoker's, but stoker is off" in done.stderr


@pytest.mark.slow("five iterations for each seed")
@pytest.mark.parametrize("seeds", [range(3), range(3, 12)], ids=["a few", "many"])
def test_batches_stay_what_they_are_when_iterations_are_left_at_any_point(seeds: range) -> None:
    """Workers and slots are used again at once: nothing late may touch a batch that the program holds."""
    for seed in seeds:
        torch.manual_seed(seed)
        loader = stoker.DataLoader(Numbers(15), batch_size=2, shuffle=True, num_workers=2)
        held: list[tuple[torch.Tensor, list[int]]] = []
        for stop in (1, 3, 0, 7, 8):
            iterator = iter(loader)
            order = _order_of(loader)
            held += [(batch, indices) for batch, indices in zip(itertools.islice(iterator, stop), order, strict=False)]
            del iterator
        assert all(batch.flatten().tolist() == indices for batch, indices in held)


def _order_of(loader: stoker.DataLoader[Any]) -> list[list[int]]:
    """The index batches of the iteration begun last, from the seed in its state."""
    drawn = generator(loader.state_dict()["seed"])
    indices = torch.randperm(15, generator=drawn).tolist()
    return [indices[start : start + 2] for start in range(0, 15, 2)]


class TestWrap:
    def test_one_loader_is_served_and_others_are_not(self) -> None:
        loader = torch.utils.data.DataLoader(Numbers(8), batch_size=2, num_workers=1)
        other = torch.utils.data.DataLoader(Numbers(8), batch_size=2, num_workers=1)
        whole = plain(loader)
        assert stoker.wrap(loader) is loader
        iterator = iter(loader)
        assert type(iterator).__module__.startswith("stoker.")
        assert plain(iterator) == whole
        assert type(iter(other)).__module__ == "torch.utils.data.dataloader"
        assert stoker.stats(loader).batches == 4
        assert stoker.stats(other).batches == 0
        assert stoker.explain(loader).tier == "elastic"

    def test_it_stays_torchs_loader(self) -> None:
        loader = torch.utils.data.DataLoader(Numbers(8), batch_size=2)
        before = dict(vars(loader))
        stoker.wrap(loader)
        assert type(loader) is torch.utils.data.DataLoader
        assert dict(vars(loader)) == before
        assert not hasattr(loader, "state_dict")
        assert not hasattr(torch.utils.data.DataLoader, "state_dict")
        assert plain(pickle.loads(pickle.dumps(loader))) == plain(loader)

    def test_stokers_own_loader_is_returned_as_it_is(self) -> None:
        loader = MAKERS["in order"]()
        assert stoker.wrap(loader) is loader

    def test_what_is_no_loader_is_refused(self) -> None:
        with pytest.raises(TypeError, match="`loader` must be a torch DataLoader, got list"):
            stoker.wrap([1, 2])  # pyright: ignore[reportArgumentType]

    def test_a_loader_with_an_iterator_of_its_own_is_refused(self) -> None:
        class Own(torch.utils.data.DataLoader[Any]):
            def _get_iterator(self) -> Any:
                return iter([])

        with pytest.raises(TypeError, match="Own has its own way"):
            stoker.wrap(Own(Numbers(3)))


class TestFeeding:
    def test_serves_every_loader_inside_and_none_outside(self) -> None:
        loader = torch.utils.data.DataLoader(Numbers(8), batch_size=2, num_workers=1)
        whole = plain(loader)
        with stoker.feeding(workers=2):
            iterator = iter(loader)
            assert type(iterator).__module__.startswith("stoker.")
            assert plain(iterator) == whole
        assert patch.current() is None
        assert type(iter(loader)).__module__ == "torch.utils.data.dataloader"

    def test_report(self) -> None:
        with stoker.feeding(workers=1) as serving:
            for _ in torch.utils.data.DataLoader(Numbers(8), batch_size=2, num_workers=1):
                pass
            assert "Throughput" in serving.report()
        report = serving.report()
        assert "Numbers" in report
        assert "elastic" in report
        assert "test_library.py" in report
        assert "Numbers" in serving._repr_html_()

    def test_a_loader_made_before_is_named_by_where_it_is_used(self) -> None:
        loader = torch.utils.data.DataLoader(Numbers(8), batch_size=2, num_workers=1)
        with stoker.feeding(workers=1) as serving:
            plain(loader)
        assert "test_library.py" in serving.report()
        assert "unknown" not in serving.report()

    def test_a_run_folder_where_one_is_asked_for(self, tmp_path: Path) -> None:
        with stoker.feeding(workers=1, run_dir=str(tmp_path / "run")):
            plain(torch.utils.data.DataLoader(Numbers(8), batch_size=2, num_workers=1))
        assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["workers"] == 1
        assert "run_ended" in (tmp_path / "run" / "events.jsonl").read_text()

    def test_report_is_about_training_however_long_the_evaluation(self) -> None:
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        with stoker.feeding(workers=1) as serving:
            for _ in torch.utils.data.DataLoader(Numbers(2000), batch_size=2):
                pass
            for batch in torch.utils.data.DataLoader(Numbers(20), batch_size=2):
                (weight * batch.sum()).sum().backward()
                optimizer.step()
        line = next(line for line in serving.report().splitlines() if line.startswith("Throughput"))
        assert " 10 batches, 20 samples" in line

    def test_nothing_is_written_unasked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with stoker.feeding():
            plain(torch.utils.data.DataLoader(Numbers(8), batch_size=2, num_workers=1))
        assert os.listdir(tmp_path) == []

    def test_an_iterator_that_outlives_the_block_says_so(self) -> None:
        with stoker.feeding(workers=1):
            iterator = iter(torch.utils.data.DataLoader(Numbers(80), batch_size=2, num_workers=1))
            next(iterator)
        with pytest.raises(RuntimeError, match=r"ended this iterator before its last batch"):
            next(iterator)

    def test_stokers_loaders_belong_to_the_block(self) -> None:
        loader = MAKERS["shuffled"]()
        with stoker.feeding(workers=1) as serving:
            iterator = iter(loader)
            next(iterator)
            state = loader.state_dict()
            assert len(plain(iterator)) == 5
        assert "Numbers" in serving.report()
        loader.load_state_dict(state)
        assert len(plain(loader)) == 5

    def test_an_open_iterator_of_stokers_goes_on(self) -> None:
        loader = MAKERS["in order"]()
        iterator = iter(loader)
        first = next(iterator).tolist()
        with stoker.feeding(workers=1):
            plain(torch.utils.data.DataLoader(Numbers(8), batch_size=2, num_workers=1))
        assert [first, *plain(iterator)] == plain(loader)

    def test_off(self) -> None:
        loader = torch.utils.data.DataLoader(Numbers(8), batch_size=2, num_workers=1)
        with stoker.feeding(off=True):
            assert type(iter(loader)).__module__ == "torch.utils.data.dataloader"

    def test_off_does_not_begin_anew_what_a_state_says_to_go_on_with(self) -> None:
        loader = MAKERS["in order"]()
        next(iter(loader))
        middle = loader.state_dict()
        plain(loader)
        other = MAKERS["in order"]()
        with stoker.feeding(off=True):
            other.load_state_dict(loader.state_dict())
            assert len(plain(other)) == 6
            other.load_state_dict(middle)
            with pytest.raises(ResumeError, match="stoker is off"):
                iter(other)

    def test_two_at_a_time_are_refused_and_the_outer_one_stays(self) -> None:
        with stoker.feeding(workers=1):
            with pytest.raises(RuntimeError, match="must not be nested"), stoker.feeding():
                pass
            assert patch.current() is not None
        assert patch.current() is None

    def test_an_unknown_setting_is_refused_with_a_suggestion(self) -> None:
        with pytest.raises(TypeError, match=r"`worker` is not a setting of `stoker.feeding`; did you mean `workers`"):
            stoker.feeding(worker=3)

    def test_a_wrong_value_is_refused_with_its_rule(self) -> None:
        with pytest.raises(ConfigError, match="`workers` must be a whole number of at least 0"):
            stoker.feeding(workers=-1)

    def test_an_exception_inside_leaves_torch_as_it_was(self) -> None:
        with pytest.raises(KeyError), stoker.feeding(workers=1):
            raise KeyError("mine")
        assert patch.current() is None


UNDER_RUN = """
import torch, stoker
from stoker.run.loaders import patch

loader = stoker.DataLoader(list(range(8)), batch_size=2, num_workers=1)
next(iter(loader))
assert patch.current().known_feed(loader) is not None, "served by the run"
state = loader.state_dict()
loader.load_state_dict(state)
print(len(list(loader)))
with stoker.feeding(workers=3) as serving:
    plain = torch.utils.data.DataLoader(list(range(8)), batch_size=2, num_workers=1)
    print(len(list(plain)))
    assert not hasattr(plain, "state_dict")
    assert "Throughput" in serving.report()
assert patch.current() is not None, "the run goes on serving"
"""


def test_under_stoker_run_all_belongs_to_the_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNDER_RUN)
    command = [sys.executable, "-m", "stoker", "run", "--run-dir", str(tmp_path / "run"), str(script)]
    environ = os.environ | {"PYTHONPATH": SOURCE}
    done = programs.run(command, capture_output=True, text=True, timeout=60, env=environ, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3\n4\n"
    opened = (tmp_path / "run" / "events.jsonl").read_text().count('"loader_opened"')
    assert opened >= 2


def test_import_needs_no_torch_and_names_it_when_it_is_missing() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import stoker\n"
        "assert 'numpy' not in sys.modules\n"
        "print(stoker.__version__, 'DataLoader' in dir(stoker))\n"
        "try:\n    stoker.DataLoader\n"
        "except ImportError as error:\n    print(error)\n"
        "try:\n    stoker.nothing\n"
        "except AttributeError as error:\n    print(error)\n"
    )
    environ = os.environ | {"PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environ, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        f"{stoker.__version__} True",
        '`torch` is needed here and not installed; install it with: pip install "stoker[torch]" [STOKER1002]',
        "module 'stoker' has no attribute 'nothing'",
    ]
