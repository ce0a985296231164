"""`stoker demo`: an ordinary program under plain python, then under `stoker run`, and both on one screen."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from stoker.cli.arguments import Parser, amount, whole
from stoker.cli.demo.progress import DemoProgress
from stoker.cli.demo.running import run_program
from stoker.core.errors import ConfigError, MissingExtraError, StokerError
from stoker.core.host import cores, shm_free_bytes
from stoker.core.texts import escaped
from stoker.core.units import format_bytes
from stoker.records.events import IterationStarted
from stoker.records.runlog import RUNS_FOLDER, read_run
from stoker.run.launch import command_of, plain_environment, run_name
from stoker.run.settings import resolve
from stoker.ui.demo_text import LEAST_BATCHES, Course, Demonstration, first_difference, render_demo
from stoker.ui.loaders import records_of
from stoker.ui.report_html import render_html
from stoker.ui.series import worker_steps
from stoker.ui.summary import as_typed, summarise
from stoker.ui.terminal import choose_mode, style_for

PROGRAM = Path(__file__).resolve().parent / "program" / "train.py"
REPORT_NAME = "report.html"
_NEEDS = {"torch": "torch", "PIL": "pillow"}
"""Modules that the program imports, and their packages in pip."""
_LEAST_SHM_BYTES = 16 * 2**20
"""Several times what torch's workers have in flight in the run under plain python."""
_LONGEST_TEMPORARY = 107 - len("/pymp-xxxxxxxx/listener-xxxxxxxx")
"""Longest folder name in bytes below which multiprocessing's socket names fit into an address (``sun_path``)."""


def main(argv: list[str]) -> int:
    """Runs the demonstration; returns 0 if both runs had the same losses, else 1.

    Raises:
        ConfigError: The command line is wrong, the records cannot be written, or shared memory is missing.
        MissingExtraError: The program needs a package that is not installed.
        StokerError: One of the runs failed.
    """
    arguments = _parser().parse_args(argv)
    started_s, load = time.monotonic(), os.getloadavg()[0]
    check_packages()
    check_shared_memory(shm_free_bytes())
    check_temporary(tempfile.gettempdir())
    with _ended_by_signals(), _run_folder() as folder:
        plain, served = _run_both(arguments, folder)
        shown = _demonstration(folder, plain, served, load, started_s)
    sys.stdout.write(render_demo(shown, style_for(sys.stdout, os.environ)))
    return 1 if first_difference(plain, served) else 0


def check_packages() -> None:
    """Refuses to start without the packages that the program needs.

    Raises:
        MissingExtraError: A package is missing.
    """
    missing = [name for module, name in _NEEDS.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise MissingExtraError(
            f"`stoker demo` needs {' and '.join(f'`{name}`' for name in missing)}, not installed here; "
            f"install with: pip install {' '.join(missing)}"
        )


def check_shared_memory(free_bytes: int) -> None:
    """Refuses to start where torch's own workers would die of bus errors.

    Raises:
        ConfigError: Too little shared memory is free.
    """
    if free_bytes < _LEAST_SHM_BYTES:
        raise ConfigError(
            f"`/dev/shm` must have {format_bytes(_LEAST_SHM_BYTES)} free for torch's own workers, "
            f"has {format_bytes(free_bytes)}; enlarge it: docker run --shm-size=1g, or "
            "mount -o remount,size=1g /dev/shm"
        )


def check_temporary(folder: str) -> None:
    """Refuses to start where torch's own workers would hang.

    They hand over batches through sockets in a folder that multiprocessing creates below this one. If a socket's name
    is too long for the kernel, the sending thread prints a traceback and drops the batch, and the loader waits forever.

    Raises:
        ConfigError: The folder's name is too long.
    """
    length = len(os.fsencode(folder))
    if length > _LONGEST_TEMPORARY:
        raise ConfigError(
            f"`{folder}` must have a name of at most {_LONGEST_TEMPORARY} bytes, since torch's own workers make "
            f"sockets below it, has {length}; choose another: TMPDIR=/tmp stoker demo"
        )


def _run_both(arguments: argparse.Namespace, folder: Path) -> tuple[Course, Course]:
    program = [
        str(PROGRAM),
        *(f"--batches={arguments.batches}", f"--read-ms={arguments.read_ms:g}", f"--step-ms={arguments.step_ms:g}"),
    ]
    torch_files = folder / "torch"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(torch_files.resolve()))  # else it leaves one in /tmp
    settings = resolve({"run-dir": str(folder), "quiet": "true"}).settings
    served = command_of(settings.but(off=False), program)
    mode = choose_mode(sys.stderr, os.environ)
    progress = DemoProgress(sys.stderr, mode, style_for(sys.stderr, os.environ), arguments.batches)
    try:
        progress.begin(f"1 of 2, python {PROGRAM.name}")
        plain = run_program([sys.executable, *program], plain_environment(os.environ), progress.follow)
        progress.begin(f"2 of 2, stoker run {PROGRAM.name}")
        return plain, run_program(*served, progress.follow)
    finally:
        progress.end()
        shutil.rmtree(torch_files, ignore_errors=True)


def _demonstration(folder: Path, plain: Course, served: Course, load: float, started_s: float) -> Demonstration:
    """Collects what the screen shows, and writes the report.

    Raises:
        ConfigError: The report cannot be written.
        RunFolderError: The run left no records.
    """
    run = read_run(folder)
    summary = summarise(run)
    loader = summary.main_loader()
    if loader is None:
        raise StokerError("the run under stoker left no record of its loader; `stoker doctor` checks this machine")
    started = records_of(run, IterationStarted, loader.loader)[0]
    report = folder / REPORT_NAME
    try:
        report.write_text(escaped(render_html(run, summary)), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"`{report}` must be a file that can be written: {error.strerror}") from error
    return Demonstration(
        program=PROGRAM.name,
        plain=plain,
        served=served,
        declared_workers=loader.declared_workers,
        samples_per_batch=round(loader.samples / loader.batches),
        workers=worker_steps(run, loader.loader),
        from_s=max(0.0, started.t_s - started.start_s),
        cores=cores(),
        load=load,
        took_s=time.monotonic() - started_s,
        report=as_typed(report.resolve()),
        path=as_typed(PROGRAM),
    )


@contextlib.contextmanager
def _run_folder() -> Generator[Path]:
    """Creates a folder for the run's records, and removes it unless the demonstration completes.

    Raises:
        ConfigError: It cannot be created.
    """
    runs = Path(RUNS_FOLDER)
    was_there = runs.exists()
    folder = runs / run_name(["demo"], os.environ)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(
            f"`{Path.cwd()}` must be a folder in which the demo may write its report: {error.strerror}; "
            "change to another, such as your home: cd && stoker demo"
        ) from error
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if not was_there and os.listdir(runs) in ([], [".gitignore"]):
            shutil.rmtree(runs, ignore_errors=True)
        raise


@contextlib.contextmanager
def _ended_by_signals() -> Generator[None]:
    """Turns Ctrl-C, a hangup of the terminal and `kill` into one line and the signal's exit status."""

    def end(number: int, _: object) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)  # the cleanup ends the program and removes the folder
        raise SystemExit(128 + number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    except SystemExit:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write("stoker: the demo was interrupted; its processes are ended and its records removed\n")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser() -> Parser:
    parser = Parser(
        prog="stoker demo",
        description="Runs one ordinary training program twice, under plain python and under `stoker run`, in about a "
        "minute, and compares speed and losses. Decoding is real; the store's reads and the accelerator are emulated.",
    )
    parser.add_argument("--batches", type=whole(LEAST_BATCHES), default=120, metavar="N", help="steps of each run")
    parser.add_argument("--read-ms", type=amount(1, 1000), default=40.0, metavar="MS", help="time of an emulated read")
    parser.add_argument("--step-ms", type=amount(1, 1000), default=40.0, metavar="MS", help="time of an emulated step")
    return parser
