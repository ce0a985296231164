"""Training on photographs in an object store, by ``stoker run --cache``: epochs beside those from local files.

The script (``photograph_program``) is an ordinary one. The store is emulated: a server on this machine with 20 ms
before each answer. Both sides run under ``stoker run``, at the same time, and take turns epoch by epoch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.programs.photographs import find_photographs
from benchmarks.support.caching import scratch
from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, ratios, run
from benchmarks.support.stub_store import stub_store

BAR = Bar(
    "cache_training",
    "epochs over photographs in an emulated S3 store with 20 ms, by stoker run --cache, beside local files",
    headline=("later_epochs",),
)
LATENCY_S = 0.02


class Program:
    """A run of the script."""

    def __init__(self, url: str, options: list[str], arguments: list[str], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "stoker.cli.main", "run", "--quiet", *options]
        self._process = subprocess.Popen(
            [*command, "-m", "benchmarks.programs.photograph_program", url, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment},
        )  # fmt: skip
        self.seen = ""

    def epoch_s(self) -> float:
        """Runs an epoch (seconds)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("epoch "):
                _, took, self.seen = line.split()
                return float(took)
        raise RuntimeError(f"the script ended with {self._process.wait()}")

    def close(self) -> None:
        """Lets it end."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=60)


@contextlib.contextmanager
def program(
    url: str, options: list[str], arguments: list[str], environment: dict[str, str] | None = None
) -> Iterator[Program]:
    """A :class:`Program`, ended at the end."""
    started = Program(url, options, arguments, environment or {})
    try:
        yield started
    finally:
        started.close()


def measure(options: Options) -> Report:
    """The first epoch of each side, then the others in turns."""
    report = Report()
    paths, origin = find_photographs(options.data)
    count = options.pick(6400, 640, 16)
    with scratch() as folder, stub_store(folder, latency_s=LATENCY_S) as store:
        photographs = folder / "bucket" / "photographs"
        photographs.mkdir(parents=True)
        for number, path in enumerate(paths[: min(count, len(paths))]):
            shutil.copy(path, photographs / f"{number:05d}.jpg")
        report.note(f"{count} samples an epoch from {origin}; data workers as the script asks; the store is emulated")
        batch_size, workers = options.pick(64, 64, 8), options.pick(2, 2, 1)
        arguments = [f"--count={count}", f"--batch-size={batch_size}", f"--workers={workers}"]
        secrets = {"AWS_ENDPOINT_URL": store.url, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        cache = [f"--cache={folder / 'cache'}"]
        with (
            program("s3://bucket/photographs", cache, arguments, secrets) as cached,
            program(str(photographs), [], arguments) as local,
        ):
            first = alternate(1, {"local files": local.epoch_s, "cache": cached.epoch_s})
            asked, questions = store.gets, store.heads
            found = alternate(options.rounds, {"local files": local.epoch_s, "cache": cached.epoch_s})
            if local.seen != cached.seen:
                raise AssertionError("the two sides saw other samples")
            report.figure("store_reads_later", store.gets - asked)
            report.figure("store_questions_later", store.heads - questions)
    rows = [[f"{name}: first epoch", f"{values[0]:.2f}", ""] for name, values in first.items()]
    rows += [[f"{name}: later epochs", *Spread.of(values).show(2)] for name, values in found.items()]
    report.table(["seconds an epoch", "median", "lowest - highest"], rows)
    report.at_most(
        "later_epochs", "later epochs: cache / local files", ratios(found["cache"], found["local files"]), 1.05
    )
    report.figure("first_epoch", first["cache"][0] / first["local files"][0])
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
