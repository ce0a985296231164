"""Cases on programs that change things: the dataset between epochs or in mid-epoch, globals, and the batches."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset, default_collate

from .datasets import Items, Rows, as_is
from .registry import case
from .transcript import Transcript

SCALE = 1.0
LOG: list[int] = []

W0: dict[str, Any] = {}
W2: dict[str, Any] = {"num_workers": 2}
PERSISTENT: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}


@case("change")
def list_grows_between_epochs() -> Transcript:
    t = Transcript()
    for options in (W0, W2):
        items: list[Any] = [1, 2, 3]
        loader = DataLoader(Items(items), batch_size=2, shuffle=True, **options)
        for epoch in range(3):
            t.epoch(loader)
            items += [10 * epoch, 11 * epoch]
    return t


@case("change")
def list_grows_with_persistent_workers() -> Transcript:
    """The sampler in the main process sees more than the workers' copies have."""
    t = Transcript()
    items: list[Any] = [1, 2, 3]
    loader = DataLoader(Items(items), batch_size=2, **PERSISTENT)
    for _ in range(2):
        t.epoch(loader)
        items += [8]
    return t


class Attributed(Rows):
    """Its samples show an attribute and an element deep inside."""

    def __init__(self) -> None:
        super().__init__(12)
        self.mode = "train"
        self.deep = {"sizes": [1, 2]}

    def __getitem__(self, index: int) -> tuple[str, int, int]:
        return self.mode, self.deep["sizes"][0], index


@case("change")
def attribute_between_epochs() -> Transcript:
    t = Transcript()
    for options in (W0, W2, PERSISTENT):
        dataset = Attributed()
        loader = DataLoader(dataset, batch_size=4, collate_fn=as_is, **options)
        t.epoch(loader)
        dataset.mode = "fine-tune"
        t.epoch(loader)
        dataset.deep["sizes"][0] = 9
        t.epoch(loader)
        t.epoch(loader)
    return t


@case("change")
def attribute_in_mid_epoch() -> Transcript:
    """Without workers the next sample sees it; workers' copies do not, until the next epoch."""
    t = Transcript()
    for options in (W0, W2):
        dataset = Attributed()
        loader = DataLoader(dataset, batch_size=2, collate_fn=as_is, **options)
        iterator = t.open(loader)
        t.take(iterator, stop=2)
        dataset.mode = "changed"
        dataset.deep["sizes"][0] = 5
        t.take(iterator)
        t.epoch(loader)
    return t


def scaled(batch: list[Any]) -> Any:
    """Uses a global variable of its module."""
    x, y = default_collate(batch)
    return x * SCALE, y


@case("change")
def global_used_by_collate() -> Transcript:
    global SCALE
    t = Transcript()
    for options in (W0, W2, PERSISTENT):
        SCALE = 1.0
        loader = DataLoader(Rows(6), batch_size=4, collate_fn=scaled, **options)
        for _ in range(3):
            t.epoch(loader)
            SCALE *= 10
    return t


@case("change")
def replaced_function_in_module() -> Transcript:
    """A function that the dataset calls through its module is replaced between epochs."""
    t = Transcript()
    loader = DataLoader(Calling(), batch_size=3, **W2)
    original = globals()["helper"]
    t.epoch(loader)
    globals()["helper"] = lambda i: i - 1000
    t.epoch(loader)
    globals()["helper"] = original
    t.epoch(loader)
    return t


def helper(index: int) -> int:
    return index + 1000


class Calling(Rows):
    """Calls a function of its module."""

    def __getitem__(self, index: int) -> int:
        return helper(index)


class Environment(Rows):
    """Reads the process's environment, directory and torch's default dtype."""

    def __getitem__(self, index: int) -> tuple[str, str, torch.Tensor]:
        return os.environ.get("CONTRACT_MODE", "none"), Path.cwd().name, torch.zeros(1)


@case("change")
def ambient_state() -> Transcript:
    t = Transcript()
    back = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="x") as folder:
        inside = Path(folder) / "inside"
        inside.mkdir()
        for options in (W0, W2):
            loader = DataLoader(Environment(4), batch_size=2, **options)
            t.epoch(loader)
            os.environ["CONTRACT_MODE"] = "second"
            os.chdir(inside)
            torch.set_default_dtype(torch.float64)
            t.epoch(loader)
            del os.environ["CONTRACT_MODE"]
            os.chdir(back.parent)
            os.chdir(back)
            torch.set_default_dtype(torch.float32)
    return t


class Logging(Rows):
    """Leaves a trace in the main process when there are no workers."""

    def __init__(self) -> None:
        super().__init__(8)
        self.calls = 0

    def __getitem__(self, index: int) -> int:
        self.calls += 1
        LOG.append(index)
        return index


@case("change")
def effects_in_the_main_process() -> Transcript:
    """Each step has run exactly the samples of its batch; with workers the main process sees none."""
    t = Transcript()
    for options in (W0, W2):
        LOG.clear()
        dataset = Logging()
        iterator = t.open(DataLoader(dataset, batch_size=2, shuffle=True, **options))
        t.event("log", list(LOG))
        for _ in range(5):
            t.take(iterator, stop=1)
            t.event("log", [list(LOG), dataset.calls])
    return t


class Replay(Dataset[Any]):
    """A replay buffer: the loop writes what later samples read."""

    def __init__(self) -> None:
        self.buffer = torch.zeros(10, 2)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.buffer[index]


@case("change")
def replay_buffer() -> Transcript:
    t = Transcript()
    for options in (W0, W2):
        dataset = Replay()
        loader = DataLoader(dataset, batch_size=2, **options)
        for epoch in range(2):
            iterator = t.open(loader)
            for step in range(5):
                t.take(iterator, stop=1)
                dataset.buffer += epoch + step + 1
    return t


class FromModel(Rows):
    """Samples that the model in training computes."""

    def __init__(self, model: torch.nn.Linear) -> None:
        super().__init__(8)
        self.model = model

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            return self.model(torch.full((3,), float(index)))


@case("change")
def items_from_the_trained_model() -> Transcript:
    t = Transcript()
    for options in (W0, W2):
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2)
        loader = DataLoader(FromModel(model), batch_size=2, **options)
        for _ in range(2):
            iterator = t.open(loader)
            for _ in range(4):
                t.take(iterator, stop=1)
                with torch.no_grad():
                    model.weight.add_(0.5)
    return t


@case("change")
def batch_changed_in_place_reaches_the_dataset() -> Transcript:
    """Without workers and collation a batch *is* the dataset's tensor; with workers it never is."""
    t = Transcript()
    for options in (W0, W2):
        dataset = Items([torch.full((2,), float(i)) for i in range(5)])
        loader = DataLoader(dataset, batch_size=None, **options)
        for _ in range(2):
            for batch in loader:
                batch.add_(100)
        t.event("dataset", dataset.items)
        numbers = Items([np.full(2, i) for i in range(5)])
        for batch in DataLoader(numbers, batch_size=None, **options):
            batch.add_(100)
        t.event("arrays", numbers.items)
    return t


@case("change")
def shared_value_set_between_epochs() -> Transcript:
    """A ``Value`` in shared memory reaches persistent workers too."""
    t = Transcript()
    for options in (W0, W2, PERSISTENT):
        dataset = SharedEpoch()
        loader = DataLoader(dataset, batch_size=3, **options)
        for epoch in range(3):
            dataset.epoch.value = epoch
            dataset.tensor.fill_(epoch)
            t.epoch(loader)
    return t


class SharedEpoch(Rows):
    """Holds its epoch in shared memory."""

    def __init__(self) -> None:
        super().__init__(6)
        self.epoch = mp.Value("i", 0)
        self.tensor = torch.zeros(1).share_memory_()

    def __getitem__(self, index: int) -> tuple[int, float, int]:
        return self.epoch.value, float(self.tensor), index


class SharedCounter(Rows):
    """Counts its samples in memory that all processes share."""

    def __init__(self) -> None:
        super().__init__(10)
        self.count = mp.Value("i", 0)

    def __getitem__(self, index: int) -> int:
        with self.count.get_lock():
            self.count.value += 1
        return index


@case("change")
def shared_counter_counts_each_sample_once() -> Transcript:
    t = Transcript()
    for options in (W0, W2):
        dataset = SharedCounter()
        loader = DataLoader(dataset, batch_size=2, **options)
        for _ in range(2):
            t.epoch(loader)
            t.event("count", dataset.count.value)
    return t


class FileCache(Rows):
    """Writes each sample to a file the first time, and reads it afterwards.

    Renamed when it is whole: the first samples are made in several processes at once (docs/reference/limits.md).
    """

    def __init__(self, folder: str) -> None:
        super().__init__(8)
        self.folder = folder
        self.opened: dict[int, bool] = {}

    def __getitem__(self, index: int) -> torch.Tensor:
        path = Path(self.folder) / f"{index}.npy"
        if not path.exists():
            with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".part", delete=False) as file:
                np.save(file, np.arange(3) * index)
            os.replace(file.name, path)
        self.opened[index] = True
        return torch.from_numpy(np.load(path))


@case("change")
def samples_cached_in_files() -> Transcript:
    t = Transcript()
    for options in (W0, W2):
        with tempfile.TemporaryDirectory() as folder:
            t.epochs(DataLoader(FileCache(folder), batch_size=2, shuffle=True, **options))
            t.event("files", len(list(Path(folder).iterdir())))
    return t


class LazyHandle(Rows):
    """Opens its file at the first sample, as readers of HDF5 do."""

    def __init__(self, path: str) -> None:
        super().__init__(10)
        self.path = path
        self.handle: Any = None

    def __getitem__(self, index: int) -> bytes:
        if self.handle is None:
            self.handle = open(self.path, "rb")  # noqa: SIM115 - held open, as in the programs that this stands for
        self.handle.seek(index * 4)
        return self.handle.read(4)


@case("change")
def lazily_opened_file() -> Transcript:
    t = Transcript()
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(range(40)))
        file.flush()
        for options in (W0, W2, PERSISTENT):
            dataset = LazyHandle(file.name)
            t.epochs(DataLoader(dataset, batch_size=3, shuffle=True, **options))
            t.event("open in the main process", dataset.handle is not None)
            if dataset.handle is not None:
                dataset.handle.close()
    return t


@case("change")
def grad_modes() -> Transcript:
    t = Transcript()
    for options in (W0, W2):
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode():
                t.epoch(DataLoader(WithGrad(6), batch_size=2, **options))
    return t


class WithGrad(Rows):
    """Shows whether its process computes gradients."""

    def __getitem__(self, index: int) -> tuple[bool, int]:
        return torch.is_grad_enabled(), index
