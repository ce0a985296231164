"""A checkpoint of an unmodified program is noticed once it is complete, and nothing else is taken for one."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from stoker.records import events  # noqa: E402
from stoker.run.elastic.checkpoints import SETTLE_S, CheckpointWatch, holds_optimizer  # noqa: E402
from stoker.run.elastic.told import RankSizes  # noqa: E402


class Program:
    """A small program in this process, under watch, on a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 0.0
        self.folder, self.limits = folder, list[int]()
        self.events: list[events.AnyEvent] = []
        self.model = torch.nn.Linear(3, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.sizes = RankSizes(workers=2, reason="two are better", changes=1, limit=str(folder / "limit"))
        self.watch = CheckpointWatch(
            self.sizes, self.events.append, lambda: self.now_s, self.limits.append, lambda: self.now_s
        )

    def step(self) -> list[events.CheckpointSaved]:
        """A step; the checkpoints that it completes."""
        before = len(self.events)
        self.optimizer.zero_grad()
        self.model(torch.ones(3)).sum().backward()
        self.optimizer.step()
        return [event for event in self.events[before:] if isinstance(event, events.CheckpointSaved)]

    def whole(self) -> dict[str, object]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": 3}


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    found = Program(tmp_path)
    stock = torch.save, torch.load
    found.watch.install()
    yield found
    found.watch.remove()
    assert (torch.save, torch.load) == stock


def test_a_checkpoint_is_complete_with_the_next_step(program: Program) -> None:
    assert not program.step()
    path = program.folder / "checkpoint.pt"
    torch.save(program.whole(), path)
    [saved] = program.step()
    assert (saved.path, saved.steps_since) == (str(path), 1)
    assert not program.step(), "once"


def test_the_first_step_tells_whether_training_continued(program: Program) -> None:
    program.step()
    started, chosen = program.events
    assert isinstance(started, events.TrainingStarted)
    assert (started.resumed, started.gradient_bytes) == (False, 16)
    assert isinstance(chosen, events.SizesChosen)
    assert (chosen.workers, chosen.changes, chosen.reason) == (2, 1, "two are better")


@pytest.mark.parametrize("whole", [True, False])
def test_continuing_is_reading_the_state_of_an_optimizer(program: Program, whole: bool) -> None:
    """Weights alone are read by programs that begin with a pretrained model."""
    path = program.folder / "read.pt"
    torch.save(program.whole() if whole else program.model.state_dict(), path)
    torch.load(path)
    program.step()
    assert isinstance(program.events[0], events.TrainingStarted)
    assert program.events[0].resumed is whole


def test_what_is_no_checkpoint(program: Program) -> None:
    program.step()
    torch.save(program.model.state_dict(), program.folder / "best.pt")
    torch.save(torch.ones(3), program.folder / "scores.pt")
    with pytest.raises(RuntimeError):
        torch.save(program.whole(), program.folder / "no such folder" / "checkpoint.pt")
    assert not program.step()


def test_a_checkpoint_of_several_files_is_one(program: Program) -> None:
    """As HF Trainer and accelerate write them: the optimizer's state in a file of its own, others after it."""
    program.step()
    for name in ("optimizer.pt", "optimizer_1.pt"):
        torch.save(program.optimizer.state_dict(), program.folder / name)
    torch.save({"python": 1}, program.folder / "rng_state.pth")
    [saved] = program.step()
    assert saved.path.endswith("optimizer_1.pt")


def test_a_checkpoint_in_memory_first(program: Program) -> None:
    """As Lightning writes it: to memory, then through a filesystem."""
    import io

    program.step()
    torch.save({"state_dict": {}, "optimizer_states": [program.optimizer.state_dict()]}, io.BytesIO())
    [saved] = program.step()
    assert saved.path == ""


def test_an_asynchronous_checkpoint_is_complete_once_no_save_follows(program: Program) -> None:
    program.step()
    thread = threading.Thread(target=torch.save, args=(program.whole(), program.folder / "checkpoint.pt"))
    thread.start()
    thread.join()
    assert not program.step()
    program.now_s = SETTLE_S - 1.0
    assert not program.step()
    program.now_s = SETTLE_S + 1.0
    [saved] = program.step()
    assert saved.steps_since == 3


def test_a_distributed_checkpoint(program: Program) -> None:
    """Torch's own format: tensor by tensor, none of which is the state of an optimizer by itself."""
    import torch.distributed.checkpoint as dcp

    program.step()
    state = {"model": program.model.state_dict(), "step": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a checkpoint without a process group
        dcp.save(state, checkpoint_id=program.folder / "shards")
        assert os.listdir(program.folder / "shards")
        assert len(program.step()) == 1
        again = Program(program.folder)
        again.watch.install()
        try:
            dcp.load(state, checkpoint_id=program.folder / "shards")
            again.step()
        finally:
            again.watch.remove()
    assert isinstance(again.events[0], events.TrainingStarted)
    assert again.events[0].resumed


def test_objects_that_refuse_to_be_looked_into(program: Program) -> None:
    class Refusing(dict):  # type: ignore[type-arg]
        def values(self) -> object:  # type: ignore[override]
            raise ValueError("not for you")

    torch.save(Refusing(), program.folder / "refusing.pt", pickle_module=_NoPickle)
    assert not program.step()


class _NoPickle:
    """Writes nothing of an object, so that the test's own class need not be pickled."""

    class Pickler:
        def __init__(self, file: object, protocol: int = 2) -> None:
            pass

        def dump(self, what: object) -> None:
            pass


def test_a_limit_is_told_once(program: Program) -> None:
    progress = events.Progress(
        t_s=1.0, loader=0, iteration=0, batches=1, samples=1, bytes=1, input_wait_s=0.0, h2d_s=0.0, compute_s=0.0,
        other_s=0.0, starved_steps=0, workers=1, ready=0, capacity=2, worker_busy_s=0.0, worker_idle_s=0.0,
        worker_cpu_s=0.0,
    )  # fmt: skip
    program.watch.on_event(progress)
    assert program.limits == []
    Path(program.sizes.limit).write_text("3")
    for _ in range(3):
        program.watch.on_event(progress)
    assert program.limits == [3]


def test_states_lie_no_deeper_than_programs_put_them() -> None:
    state = {"state": {}, "param_groups": []}
    for _ in range(3):
        assert holds_optimizer(state)
        state = {"inner": [state]} if isinstance(state, dict) and "state" in state else {"more": state}
    assert not holds_optimizer({"a": {"b": {"c": {"d": {"e": {"state": {}, "param_groups": []}}}}}})
    assert not holds_optimizer(torch.ones(2))


def test_a_limit_takes_data_workers_away_and_gives_them_back() -> None:
    from stoker.feed.scaling import Observation
    from stoker.run.loaders.serving import Serving
    from stoker.run.settings import RunSettings

    serving = Serving(RunSettings.of(cpu_budget=8.0, max_workers=6), [])
    with contextlib.closing(serving):
        policy = serving.policy(0)
        assert policy.start(4, 2).workers == 4
        observation = Observation(
            now_s=1.0, workers=4, depth=2, steps=10, items=10, starved_frac=0.0, input_wait_frac=0.0, blocked_frac=0.5,
            step_s=0.1, item_wall_s=0.1, item_cpu_s=0.0, batch_bytes=0, worker_bytes=0,
        )  # fmt: skip
        serving.limit_workers(2)
        decision = policy.decide(observation)
        assert decision.workers == 2
        assert "the most that `max_workers` allows (2)" in decision.reason
        serving.limit_workers(99)
        assert policy.config.max_workers == 6, "never more than the user allows"
