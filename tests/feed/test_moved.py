"""Loaders that declare no workers: moved after a trial, brought back when the program changes what they refer to."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from stoker.core.errors import DifferentResultError
from stoker.feed.loader import supply
from stoker.feed.loader.pinning import Pinner
from stoker.feed.state import life
from stoker.feed.state.trial import TRIAL_BATCHES
from stoker.records import events
from stoker.run.loaders import patch
from stoker.run.loaders.serving import Serving
from stoker.run.settings import RunSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


class Slow(Dataset[torch.Tensor]):
    """Each sample takes its time, so that moving it pays."""

    def __init__(self, length: int = 480, sample_s: float = 0.002) -> None:
        self.offset = 0.0
        self.sample_s = sample_s
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.sample_s)
        if index == -1:
            raise KeyError("never")
        return torch.full((8,), index + self.offset)


class Drawing(Slow):
    """Draws from the main random stream."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.rand(1)


class Logging(Slow):
    """Leaves a trace in the training process."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        self.seen.append(index)
        return super().__getitem__(index)


class Failing(Slow):
    """One sample raises."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 401:
            raise KeyError("sample 401")
        return super().__getitem__(index)


class Served:
    """Serves loaders and keeps what was said."""

    def __init__(self, **settings: Any) -> None:
        self.events: list[events.AnyEvent] = []
        self.serving = Serving(RunSettings.of(**settings), sinks=[self.events.append])

    def __enter__(self) -> Served:
        patch.install(self.serving)
        return self

    def __exit__(self, *_: object) -> None:
        patch.remove()
        self.serving.close()

    @property
    def opened(self) -> list[tuple[str, str]]:
        """The last word on each loader."""
        last = {e.loader: (e.tier, e.reason) for e in self.events if isinstance(e, events.LoaderOpened)}
        return list(last.values())


def run(dataset: Dataset[Any], **options: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    torch.manual_seed(3)
    batches = [batch.clone() for batch in DataLoader(dataset, batch_size=8, **options)]
    return batches, torch.get_rng_state()


@pytest.mark.slow("epochs of samples that wait, long enough for the loader to move")
@pytest.mark.parametrize("shuffle", [False, True])
def test_moved_batches_are_those_of_torch(shuffle: bool) -> None:
    """Same batches, same order, same random state, over two epochs."""
    dataset = Slow(240, sample_s=0.008)  # on a busy machine, too, watching it costs little beside that
    expected = [run(dataset, shuffle=shuffle) for _ in range(2)]
    with Served() as served:
        found = [run(dataset, shuffle=shuffle) for _ in range(2)]
    for (batches, state), (other, other_state) in zip(expected, found, strict=True):
        assert len(batches) == len(other)
        assert all(torch.equal(a, b) for a, b in zip(batches, other, strict=True))
        assert torch.equal(state, other_state)
    assert {tier for tier, _ in served.opened} == {"elastic"}, served.opened


@pytest.mark.parametrize(
    ("dataset", "word"), [(Drawing(), "random stream"), (Logging(), "changes from batch to batch"), (Slow(64), "short")]
)
def test_what_can_not_be_shown_to_be_the_same_stays(dataset: Slow, word: str) -> None:
    """It stays in the training process, with the reason."""
    with Served() as served:
        batches, _ = run(dataset)
    assert len(batches) == len(dataset) // 8
    ((tier, reason),) = served.opened
    assert tier == "process"
    assert word in reason


def test_cheap_batches_stay() -> None:
    """A loader whose batches cost nothing is not worth a process."""
    with Served() as served:
        for _ in DataLoader(list(range(1000)), batch_size=4):  # type: ignore[arg-type]
            pass
    ((tier, reason),) = served.opened
    assert tier == "process"
    assert "nothing to gain" in reason


def test_change_in_mid_iteration_is_seen_by_the_next_batch() -> None:
    """As without stoker: the batch after the change is made from the changed dataset."""
    dataset = Slow(960, 0.004)
    with Served() as served:
        for step, batch in enumerate(DataLoader(dataset, batch_size=8)):
            assert batch[0, 0] == 8 * step + dataset.offset
            if step == 90:  # on a busy machine it takes a while until the loader has been moved
                dataset.offset = 0.5
    assert any(isinstance(e, events.Notice) and "has changed" in e.text for e in served.events)


class Unpinned(Pinner):
    """Keeps batches as they are, where there is no accelerator to pin them for; one step ahead as ever."""

    def __init__(self, device: Any) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._submitted = None

    def pin(self, batch: Any) -> Any:
        return batch


@pytest.fixture
def pins_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders pin their batches."""
    begin = supply.Supply.__init__
    monkeypatch.setattr(supply, "Pinner", Unpinned)
    monkeypatch.setattr(supply, "_pinned", lambda device, batch: batch)
    monkeypatch.setattr(supply.Supply, "__init__", lambda *given, pins: begin(*given, pins=True))


@pytest.mark.usefixtures("pins_ahead")
def test_batch_that_is_pinned_ahead_is_made_again_after_a_change() -> None:
    dataset, came = Slow(960, 0.004), 0
    with Served() as served:
        for step, batch in enumerate(DataLoader(dataset, batch_size=8)):
            assert batch[0, 0] == 8 * step + dataset.offset
            came += 1
            if step == 90:
                time.sleep(0.1)  # the next ones are made meanwhile
            if step == 91:
                dataset.offset = 0.5
    assert came == 120
    last = [e for e in served.events if isinstance(e, events.Progress)][-1]
    assert (last.batches, last.samples) == (120, 960), "each is counted once"
    assert any(isinstance(e, events.Notice) and "has changed" in e.text for e in served.events)


@pytest.mark.usefixtures("pins_ahead")
def test_no_batch_is_pinned_ahead_before_it_is_known_who_makes_it() -> None:
    with Served(workers=0):
        batches = iter(DataLoader(Slow(64), batch_size=8, num_workers=2))
        time.sleep(0.3)  # the first two are made
        assert [float(batch[0, 0]) for batch in batches] == [8.0 * step for step in range(8)]


@pytest.mark.usefixtures("pins_ahead")
def test_batch_that_is_pinned_ahead_is_not_the_next_iterations() -> None:
    with Served(workers=2) as served:
        loader = DataLoader(Slow(64, 0.0), batch_size=8, num_workers=2, persistent_workers=True)
        for epoch in range(3):
            for step, batch in enumerate(loader):
                assert float(batch[0, 0]) == 8.0 * step
                if step == 3 and epoch < 2:
                    break
                time.sleep(0.1)  # the next one is made
        del loader
    last = [e for e in served.events if isinstance(e, events.Progress)][-1]
    assert last.batches == 4 + 4 + 8, "what was pinned ahead and not delivered is not counted"


def test_batch_that_is_given_up_before_it_is_built_frees_its_memory() -> None:
    seen: list[str] = []
    pinner, begun, over = Unpinned("cpu"), threading.Event(), threading.Event()
    pinner.submit(lambda: (begun.set(), over.wait(10)), lambda: seen.append("freed in the middle"))
    assert begun.wait(10)
    pinner.forget()
    pinner.submit(lambda: seen.append("built"), lambda: seen.append("freed"))
    pinner.close()
    over.set()
    assert seen == ["freed"]


@pytest.mark.usefixtures("pins_ahead")
def test_batch_that_is_made_again_is_the_one_that_was_pinned_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "RECHECK_EVERY", 20)
    with Served() as served:
        for step, batch in enumerate(DataLoader(Slow(400, 0.008), batch_size=8)):
            assert float(batch[0, 0]) == 8.0 * step
            time.sleep(0.02)  # the next one is made
    assert {tier for tier, _ in served.opened} == {"elastic"}, served.opened


class Refusing(Slow):
    """One sample raises, wherever it is made."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 8 * TRIAL_BATCHES:
            raise KeyError(index)
        return super().__getitem__(index)


def test_batch_that_raises_in_both_places_is_no_difference() -> None:
    with Served() as served:
        batches, found = iter(DataLoader(Refusing(480, 0.008), batch_size=8)), []
        while len(found) < 59:
            with contextlib.suppress(KeyError):
                found.append(float(next(batches)[0, 0]))
    assert found == [8.0 * step for step in range(60) if step != TRIAL_BATCHES]
    assert {tier for tier, _ in served.opened} == {"elastic"}, served.opened


def test_exceptions_come_bare() -> None:
    """Torch adds nothing to an exception where there are no workers."""
    with Served(), pytest.raises(KeyError, match=r"^'sample 401'$"):
        run(Failing())


def test_difference_in_a_data_worker_is_loud(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset that depends on what the walk can't see is caught when a batch is made again."""
    monkeypatch.setattr(life, "RECHECK_EVERY", 20)

    class Hidden(Slow):
        def __getitem__(self, index: int) -> torch.Tensor:
            return super().__getitem__(index) + float(torch.get_num_interop_threads() < 0) + _hidden()

    def train() -> None:
        for step, _ in enumerate(DataLoader(Hidden(960, 0.004), batch_size=8)):
            if step == 10:
                random.hidden = 1.0  # type: ignore[attr-defined]

    with Served(), pytest.raises(DifferentResultError, match=r"batch \d+ made in a data worker differs"):
        train()


def _hidden() -> float:
    return float(getattr(random, "hidden", 0.0))
