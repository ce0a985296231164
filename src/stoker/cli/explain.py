"""`stoker explain`: how each loader of a program, or of a finished run, is served, and why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from stoker.backends.process_tree import end_tree
from stoker.cli.command_line import CommandOption, check_program, split
from stoker.cli.errors import refuse
from stoker.cli.output import print_json
from stoker.cli.run import OPTIONS as RUN_OPTIONS
from stoker.core.errors import ConfigError, RunFolderError, StokerError
from stoker.core.saying import say
from stoker.records.events import LoaderOpened
from stoker.records.exchange import ExchangeRuns
from stoker.records.exchange_file import read_exchanges
from stoker.records.explanation import Explanation
from stoker.records.fitting import FitRuns
from stoker.records.fitting_file import read_fits
from stoker.records.runlog import RUNS_FOLDER, Run, find_run, read_run
from stoker.run.launch import command_of
from stoker.run.settings import resolve
from stoker.ui.cuts import latest_cuts, summarise_cut, write_cut
from stoker.ui.exchange.run_text import write_exchange_lines
from stoker.ui.explanation import render_explanation
from stoker.ui.fitting.text import write_fit_lines
from stoker.ui.terminal import style_for

HELP = f"""\
usage: stoker explain [--json] [options of `stoker run`] script.py [args…]
       stoker explain [--json] [options of `stoker run`] -m module [args…]
       stoker explain [--json] [--rank N] [RUN]

Says how each DataLoader is served, and why.

A program is run up to its first iteration over a loader, where it ends; all loaders alive by then are explained, and
what the program itself prints goes to standard error. Of a RUN (a folder, or the name of one under `{RUNS_FOLDER}`; by
default the latest), the records are read.

  --json      print the explanation as JSON
  --rank N    of a run: this rank's loaders (default: the lowest)
"""

_COMMAND = "stoker explain"
_OPTIONS = {**RUN_OPTIONS, "json": CommandOption(), "rank": CommandOption("a number")}
_POLL_S = 0.05
"""How often the program's state is polled."""


def main(argv: list[str]) -> int:
    """Explains; returns 0, 2 for a wrong command line, or the status of a program that ended too early."""
    try:
        chosen, words = split(argv, _COMMAND, _OPTIONS)
        if "help" in chosen:
            sys.stdout.write(HELP)
            return 0
        as_json, rank = chosen.pop("json", None) is not None, chosen.pop("rank", None)
        if not chosen and not _means_program(words):
            return _explain_run(words, rank, as_json=as_json)
        check_program(words, _COMMAND)
        if rank is not None:
            raise ConfigError(f"`--rank` must go with a run, got the program `{words[0]}`")
        return _explain_program(chosen, words, as_json=as_json)
    except StokerError as error:
        return refuse(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _means_program(words: list[str]) -> bool:
    """Whether these words are a program rather than a run."""
    if not words:
        return False
    if words[0].startswith("-") or words[0].endswith((".py", ".pyw", ".pyz", ".zip")):
        return True
    path = Path(words[0])
    if path.is_file():
        return not path.name.endswith(".json")
    return path.is_dir() and (path / "__main__.py").is_file()


def _explain_run(words: list[str], rank: str | None, *, as_json: bool) -> int:
    if len(words) > 1:
        raise ConfigError(
            f"`{words[0]}` must be a program to be followed by arguments, and is not one; got `{words[1]}`"
        )
    if rank is not None and not rank.isdecimal():
        raise ConfigError(f"`--rank` must be followed by a number, got {rank!r}")
    try:
        folder = find_run(words[0] if words else None)
    except RunFolderError as error:
        if not words:
            raise
        raise RunFolderError(
            f"`{words[0]}` is neither a program nor a run: no such file, and no run folder of that name under "
            f"`{RUNS_FOLDER}`"
        ) from error
    run = read_run(folder, int(rank) if rank is not None else None)
    _show(explanation_of(run, read_exchanges(folder), read_fits(folder)), as_json=as_json)
    return 0


def explanation_of(run: Run, exchanges: ExchangeRuns | None = None, fits: FitRuns | None = None) -> Explanation:
    """The last word of a run's records on each loader, and its exchanges: the probe may have changed the first one."""
    last = {event.loader: event for event in run.events if isinstance(event, LoaderOpened)}
    cuts = {number: summarise_cut(latest_cuts(run.events, number)) for number in sorted(last)}
    return Explanation(
        program=run.header.argv,
        loaders=[last[number] for number in sorted(last)],
        cuts={number: write_cut(cut) for number, cut in cuts.items() if cut is not None},
        exchanges=write_exchange_lines(exchanges) if exchanges is not None else [],
        fits=write_fit_lines(fits) if fits is not None else [],
        rank=run.header.rank,
        world_size=run.header.world_size,
    )


def _explain_program(chosen: dict[str, str], program: list[str], *, as_json: bool) -> int:
    settings = resolve(chosen).settings
    if settings.report.off:
        raise ConfigError("`off` must not be set to explain a program: it leaves every loader to torch")
    with tempfile.TemporaryDirectory(prefix="stoker-explain-") as folder:
        target = Path(folder, "explanation.json")
        command, environ = command_of(settings, program, explain_to=str(target))
        status = _run(command, environ, target)
        content = target.read_bytes() if target.exists() else b""
    if not content:
        return _nothing_found(program, status)
    _show(msgspec.json.decode(content, type=Explanation), as_json=as_json)
    return 0


def _run(command: list[str], environ: dict[str, str], target: Path) -> int:
    """Runs the program until it has explained its loaders or ended; returns its exit status.

    Standard output is for the explanation, so the program's output goes to standard error. A rank or a child may
    produce the explanation: all processes are ended together, so that none sees another's end and continues.
    """
    sys.stdout.flush()
    process = subprocess.Popen(command, env=environ, stdout=2)
    try:
        while not target.exists():
            try:
                return process.wait(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                continue
    finally:
        end_tree(process)
    return 0


def _nothing_found(program: list[str], status: int) -> int:
    name = program[1] if program[0] in ("-m", "-c") and program[1:] else program[0]
    if status:
        say(f"`{name}` ended with status {status} before it iterated over a DataLoader: nothing to explain")
        return status if status > 0 else 128 - status
    return refuse(ConfigError(f"`{name}` must iterate over a torch DataLoader to be explained, and ended without"))


def _show(found: Explanation, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        sys.stdout.write(render_explanation(found, style_for(sys.stdout, os.environ)))
    sys.stdout.flush()
