"""Reading processes that are killed, stopped and begun again while objects change and pages go or are damaged.

Whatever they were told is compared with a model: bytes of exactly one version that the rule allows, or an error.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import pytest

from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.names import PAGE_BYTES
from stoker.cache.policies import Freshness, Rule
from stoker.core.errors import SourceChangedError

pytestmark = pytest.mark.integration

READERS = 3
SIZES = (1000, PAGE_BYTES // 8 * 8, 2 * PAGE_BYTES + 8, 4 * PAGE_BYTES + 800, 5 * PAGE_BYTES)
LIMIT_BYTES = 9 << 20
"""Half of the objects, as a rule."""
_CLOCK_S = 0.02
"""By which stamps of times of different processes may differ, and files' may lag behind."""


def content_of(version: int, size: int) -> bytes:
    """Bytes of a version: its number, over and over."""
    return struct.pack("<Q", version) * (size // 8)


@dataclass
class Stored:
    """One version of an object: what it is, from when, until when."""

    number: int
    size: int
    since: float
    until: float = float("inf")


@dataclass
class Model:
    """What the store held when.

    Attributes:
        age_s: that the rule allows.
    """

    age_s: float
    history: dict[str, list[Stored]] = field(default_factory=dict[str, list[Stored]])
    number: int = 0

    def overwrite(self, path: str, size: int) -> None:
        """Replaces an object, in one step."""
        self.number += 1
        aside = Path(f"{path}.new")
        aside.write_bytes(content_of(self.number, size))
        before = time.time()
        os.replace(aside, path)
        versions = self.history.setdefault(path, [])
        if versions:
            versions[-1].until = time.time()
        versions.append(Stored(self.number, size, before))

    def allowed(self, path: str, began: float, ended: float) -> list[Stored]:
        """Versions that a call may see, which ran at that time."""
        earliest, latest = began - self.age_s - _CLOCK_S, ended + _CLOCK_S
        return [one for one in self.history[path] if one.until >= earliest and one.since <= latest]


def is_slice(one: Stored, start: int, end: int | None, data: bytes) -> bool:
    """Whether bytes are the range of a version."""
    first, last, _ = slice(start, end).indices(one.size)
    if len(data) != max(0, last - first):
        return False
    begin = first % 8
    return data == content_of(one.number, len(data) + 16)[begin : begin + len(data)]


def serve(filesystem: StokerFileSystem, pipe: Connection) -> None:
    """What a reading process does: as it is told."""
    file: Any = None
    while True:
        what, *rest = pipe.recv()
        began = time.time()
        try:
            if what == "cat":
                path, start, end = rest
                found: Any = filesystem.cat_file(path, start, end)
            elif what == "ranges":
                path, starts, ends = rest
                found = filesystem.cat_ranges([path] * len(starts), starts, ends, on_error="raise")
            elif what == "open":
                file = filesystem.open(rest[0])
                found = file.size
            else:
                file.seek(rest[0])
                found = file.read(rest[1])
        except SourceChangedError:
            found = None
        pipe.send((began, time.time(), found))


class ReaderProcess:
    """A process that reads, and what it was told last to do."""

    def __init__(self, filesystem: StokerFileSystem) -> None:
        self.filesystem = filesystem
        self.start()

    def start(self) -> None:
        self.pipe, theirs = Pipe()
        self.asked: tuple[Any, ...] | None = None
        self.opened: tuple[str, list[Stored]] | None = None
        self.pid = os.fork()
        if self.pid == 0:
            signal.alarm(100)
            try:
                self.pipe.close()
                serve(self.filesystem, theirs)
            finally:
                os._exit(1)
        theirs.close()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pipe.close()

    def ask(self, *what: Any) -> None:
        self.asked = what
        self.pipe.send(what)

    def judge(self, model: Model) -> None:
        """Compares the answer with the model."""
        assert self.asked is not None
        what, *rest = self.asked
        self.asked = None
        began, ended, found = self.pipe.recv()  # EOFError: it raised something else, and ended
        if found is None:
            assert self.opened is not None or what != "read"
            return
        if what == "open":
            versions = [one for one in model.allowed(rest[0], began, ended) if one.size == found]
            assert versions, "of a size that no version had"
            self.opened = rest[0], versions
        elif what == "read":
            assert self.opened is not None
            path, versions = self.opened
            start, length = rest
            left = [one for one in versions if is_slice(one, start, start + length, found)]
            assert left, "of another version than the file, or of several"
            self.opened = path, left
        else:
            parts = [(rest[1], rest[2], found)] if what == "cat" else list(zip(rest[1], rest[2], found, strict=True))
            assert any(all(is_slice(one, *part) for part in parts) for one in model.allowed(rest[0], began, ended)), (
                "of a version that may not be seen any more, or of several"
            )


def damage(directory: Path, choose: random.Random) -> None:
    """Flips bits of pages."""
    files = [path for name in ("segments", "large") for path in sorted((directory / name).iterdir())]
    for path in choose.sample(files, min(2, len(files))):
        try:
            with open(path, "r+b", buffering=0) as file:
                fd = file.fileno()
                for _ in range(20):
                    at = choose.randrange(max(1, path.stat().st_size))
                    if byte := os.pread(fd, 1, at):
                        os.pwrite(fd, bytes([byte[0] ^ 4]), at)
        except FileNotFoundError:
            pass  # evicted just now


def run(filesystem: StokerFileSystem, folder: Path, age_s: float, seed: int, steps: int) -> int:
    """So many steps; how many answers were compared."""
    choose, model, judged = random.Random(seed), Model(age_s), 0
    paths = [str(folder / str(number)) for number in range(4)]
    for path in paths:
        model.overwrite(path, choose.choice(SIZES))
    readers = [ReaderProcess(filesystem) for _ in range(READERS)]
    try:
        for _ in range(steps):
            reader, path = choose.choice(readers), choose.choice(paths)
            kind = choose.choices(
                ["ask", "overwrite", "kill", "stop", "evict", "damage", "wait"], [40, 12, 4, 3, 3, 2, 4]
            )[0]
            if kind == "overwrite":
                model.overwrite(path, choose.choice([model.history[path][-1].size, *SIZES]))
            elif kind == "kill":
                time.sleep(choose.uniform(0, 0.01))  # somewhere in what it was told to do
                reader.kill()
                reader.start()
            elif kind == "stop":
                os.kill(reader.pid, signal.SIGSTOP)
                time.sleep(choose.uniform(0, 0.02))
                os.kill(reader.pid, signal.SIGCONT)
            elif kind == "evict":
                filesystem.pages.evict(filesystem.reader.name(path) if choose.random() < 0.7 else None)
            elif kind == "damage":
                damage(filesystem.pages.layout.root, choose)
            elif kind == "wait":
                time.sleep(choose.uniform(0, 2 * age_s + 0.01))
            else:
                if reader.asked is not None:
                    reader.judge(model)
                    judged += 1
                tell(reader, path, choose)
        for reader in readers:
            if reader.asked is not None:
                reader.judge(model)
                judged += 1
    finally:
        for reader in readers:
            reader.kill()
    return judged


def tell(reader: ReaderProcess, path: str, choose: random.Random) -> None:
    """Has a reader do something; it is not waited for."""
    kind = choose.choice(["cat", "cat", "ranges", "open", "read", "read"])
    starts = sorted(choose.randrange(0, 5 * PAGE_BYTES) for _ in range(3))
    ends = [start + choose.choice([8, 5000, 2 * PAGE_BYTES]) for start in starts]
    if kind == "cat":
        whole = choose.random() < 0.4
        reader.ask("cat", path, 0 if whole else starts[0], None if whole else ends[0])
    elif kind == "ranges":
        reader.ask("ranges", path, starts, ends)
    elif kind == "open" or reader.opened is None:
        reader.ask("open", path)
    else:
        reader.ask("read", starts[0], ends[0] - starts[0])


RULES = {"always": (Rule(freshness=Freshness.ALWAYS), 0.0), "age": (Rule(max_age_s=0.1), 0.1)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "store"
    place.mkdir()
    return place


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("rule", RULES)
def test_any_interleaving(make: Callable[..., StokerFileSystem], folder: Path, rule: str, seed: int) -> None:
    kept, age_s = RULES[rule]
    filesystem = make("file", rules=(kept,), limit_bytes=LIMIT_BYTES)
    assert run(filesystem, folder, age_s, seed, steps=120) > 40
