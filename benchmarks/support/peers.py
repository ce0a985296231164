"""Other loaders on the same photographs, for comparison: ``feed_images --peers``.

Each peer runs in a process of its own (some start threads, after which forking is not safe) and gets the same work in
the form that suits it: the same files, the same decoding and cropping, batches of the same size, as many processes or
threads as the others have. Those that are not installed are left out, with a line that says so.
"""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.support.harness import Report

WORKERS = 2
Epoch = Callable[[], Iterator[Any]]


def _sample(path: str) -> Any:
    """One sample, as the dataset of the benchmark makes it."""
    from benchmarks.programs.photographs import Photographs

    return Photographs([path], 1)[0][0]


def _stack(samples: list[Any]) -> Any:
    import torch

    return torch.stack(list(samples))


def spdl(paths: list[str], batch_size: int, folder: Path) -> Epoch:
    """SPDL: threads, since OpenCV leaves the interpreter's lock."""
    from spdl.pipeline import PipelineBuilder

    def epoch() -> Iterator[Any]:
        builder = PipelineBuilder().add_source(paths).pipe(_sample, concurrency=WORKERS)
        pipeline = builder.aggregate(batch_size).pipe(_stack).add_sink(4).build(num_threads=WORKERS + 1)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator(timeout=60)

    return epoch


def webdataset(paths: list[str], batch_size: int, folder: Path) -> Epoch:
    """WebDataset: tar files of the same photographs, torch's loader around it."""
    import tarfile

    import webdataset as wds

    shards = [folder / f"{number}.tar" for number in range(WORKERS)]
    for number, shard in enumerate(shards):
        with tarfile.open(shard, "w") as tar:
            for place, path in enumerate(paths[number::WORKERS]):
                tar.add(path, f"{place:06d}.jpg")

    def decode(sample: dict[str, Any]) -> Any:
        return _decoded(sample["jpg"])

    data = wds.WebDataset([str(shard) for shard in shards], shardshuffle=False).map(decode)
    loader = wds.WebLoader(data.batched(batch_size, collation_fn=_stack), batch_size=None, num_workers=WORKERS,
                           persistent_workers=True)  # fmt: skip
    return lambda: iter(loader)


def _decoded(data: bytes) -> Any:
    """The same decoding and cropping from the bytes of a file."""
    import cv2
    import numpy as np

    from benchmarks.programs.photographs import augmented

    return augmented(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR))


def grain(paths: list[str], batch_size: int, folder: Path) -> Epoch:
    """Grain: its own worker processes."""
    import grain.python as pygrain

    class Load(pygrain.MapTransform):
        def map(self, path: str) -> Any:
            return _sample(path).numpy()

    def epoch() -> Iterator[Any]:
        sampler = pygrain.IndexSampler(len(paths), pygrain.NoSharding(), shuffle=True, num_epochs=1, seed=1)
        return iter(
            pygrain.DataLoader(
                data_source=_Paths(paths), sampler=sampler, operations=[Load(), pygrain.Batch(batch_size)],
                worker_count=WORKERS,
            )
        )  # fmt: skip

    return epoch


class _Paths:
    """A source of paths, as Grain wants it."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> str:
        return self._paths[index]


def streaming(paths: list[str], batch_size: int, folder: Path) -> Epoch:
    """MosaicML Streaming: shards of the same photographs, torch's loader around it."""
    from streaming import MDSWriter, StreamingDataset
    from torch.utils.data import DataLoader

    class Photographs(StreamingDataset):
        def __getitem__(self, index: int) -> Any:
            return _decoded(super().__getitem__(index)["jpg"])

    with MDSWriter(out=str(folder / "mds"), columns={"jpg": "bytes"}) as writer:
        for path in paths:
            writer.write({"jpg": Path(path).read_bytes()})
    data = Photographs(local=str(folder / "mds"), batch_size=batch_size, shuffle=False)
    loader = DataLoader(data, batch_size, num_workers=WORKERS, persistent_workers=True)
    return lambda: iter(loader)


def ray(paths: list[str], batch_size: int, folder: Path) -> Epoch:
    """Ray Data: a map over the paths, on as many cores."""
    import ray as ray_core
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray_core.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray_core.data.DataContext.get_current().enable_progress_bars = False
    data = ray_core.data.from_items([{"path": path} for path in paths]).map(
        lambda row: {"image": _sample(row["path"]).numpy()}
    )
    return lambda: iter(data.iter_torch_batches(batch_size=batch_size))


PEERS: dict[str, tuple[str, Callable[[list[str], int, Path], Epoch]]] = {
    "SPDL": ("spdl", spdl),
    "WebDataset": ("webdataset", webdataset),
    "Grain": ("grain", grain),
    "MosaicML Streaming": ("streaming", streaming),
    "Ray Data": ("ray", ray),
}
"""Name for people, module that must be there, and how an epoch is begun."""
_INSTALL = {"ray": "ray[data]"}
"""What brings a module that is not in the extra `bench`."""


class Peer:
    """One peer in a process of its own."""

    def __init__(self, name: str, paths: list[str], batch_size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(name, paths, batch_size, theirs))
        self._process.start()

    def rate(self) -> float:
        """Samples per second over one epoch; NaN when it could not."""
        self._pipe.send(True)
        if not self._pipe.poll(120):
            raise TimeoutError("no answer within 120 s")
        found = self._pipe.recv()
        if isinstance(found, str):
            raise RuntimeError(found)
        return found

    def close(self) -> None:
        """Ends the process."""
        try:
            self._pipe.send(False)
        except OSError:
            pass  # it has ended already
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(name: str, paths: list[str], batch_size: int, pipe: Any) -> None:
    multiprocessing.set_start_method("fork", force=True)  # of the peer's own workers, as for all others here
    try:
        with tempfile.TemporaryDirectory(prefix="stoker-peer-") as folder:
            epoch = PEERS[name][1](paths, batch_size, Path(folder))
            while pipe.recv():
                begun = time.perf_counter()
                samples = sum(len(_images(batch)) for batch in epoch())
                pipe.send(samples / (time.perf_counter() - begun))
    except EOFError:
        return
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")


def _images(batch: Any) -> Any:
    return batch["image"] if isinstance(batch, dict) else batch


def start(report: Report, paths: list[str], count: int, batch_size: int) -> dict[str, Peer]:
    """The peers that are installed and have run once; why others have not is noted in the report."""
    files = [paths[number % len(paths)] for number in range(count)]
    found: dict[str, Peer] = {}
    for name, (module, _) in PEERS.items():
        if importlib.util.find_spec(module) is None:
            report.note(f"{name} is not installed and left out (pip install '{_INSTALL.get(module, 'stoker[bench]')}')")
            continue
        peer = Peer(name, files, batch_size)
        try:
            peer.rate()
            found[name] = peer
        except (RuntimeError, TimeoutError, EOFError) as error:
            report.note(f"{name} did not run: {str(error)[:160]}")
            peer.close()
    return found
