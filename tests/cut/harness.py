"""The same program under plain python and `stoker run --cut`, side by side: equal output, and what really moved."""

from __future__ import annotations

import json
import os
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from stoker.records.events import CutChosen, LoaderOpened, Notice
from stoker.records.runlog import Run, read_ranks
from tests.ecosystem.harness import environment, warnings_in
from tests.warm import programs

PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT_S = 200
MARK = "CUT_TRIAL"
ALWAYS = ("--cut", "always")
_UNWANTED = ("torch's own", "anew", "could not follow")
"""In notices: stoker has given up something that it should master."""


@dataclass(frozen=True)
class Ended:
    """One run of a program."""

    status: int
    out: str
    err: str

    def section(self, name: str) -> str:
        """What one of several programs printed."""
        return self.out.partition(f"== {name}\n")[2].partition("\n== ")[0]


@dataclass(frozen=True)
class Both:
    """A program's two runs, the records of the served one, and its steps on prepared batches."""

    plain: Ended
    served: Ended
    ranks: list[Run] = field(default_factory=list[Run])
    steps: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """For each program how many such steps began, and how many found all as recorded."""

    def cuts(self, program: str = "", rank: int = 0) -> list[CutChosen]:
        """The last word on each kind of step of each loader that a program's file made."""
        events = self.ranks[rank].events
        sites = {event.loader: event.site for event in events if isinstance(event, LoaderOpened)}
        cuts = [event for event in events if isinstance(event, CutChosen)]
        last = {(cut.loader, cut.variant): cut for cut in cuts if f"{program}.py:" in sites[cut.loader] or not program}
        return list(last.values())

    def moved(self, program: str = "", rank: int = 0) -> set[str]:
        """Names of the functions whose calls were moved for good."""
        nodes = [node for cut in self.cuts(program, rank) if cut.outcome == "moved" for node in cut.nodes]
        return {node.function.rpartition(".")[2] for node in nodes if node.place == "moved"}

    def check(self) -> None:
        """Requires that both ended in the same way, with the same warnings, and that stoker served to the end."""
        assert self.served.status == self.plain.status, self.served.err
        assert warnings_in(self.served.err) - warnings_in(self.plain.err) == set(), self.served.err
        for run in self.ranks:
            notices = [event.text for event in run.events if isinstance(event, Notice)]
            assert not [text for text in notices if any(word in text for word in _UNWANTED)], notices


def both(
    program: str, *arguments: str, cwd: Path, options: tuple[str, ...] = ALWAYS, launcher: tuple[str, ...] = ()
) -> Both:
    """Runs ``programs/program`` both ways, side by side; nothing of either may be left when they have ended.

    Args:
        program: file name.
        arguments: the program's own.
        cwd: an empty folder.
        options: of `stoker run`.
        launcher: words between python and the program, such as torchrun's.
    """
    words = (*launcher, str(PROGRAMS / program), *arguments)
    stoker_run = ("-m", "stoker", "run", "--quiet", "--run-dir", str(cwd / "records"), *options)
    mark = uuid.uuid4().hex
    processes = [_start(command, cwd, mark) for command in (words, (*stoker_run, *words))]
    try:
        outputs = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    plain, served = (Ended(p.returncode, *output) for p, output in zip(processes, outputs, strict=True))
    left = _marked(mark)
    assert not left, f"left running: {left}"
    shared = [name for name in os.listdir("/dev/shm") if f"_{processes[1].pid}_" in name]
    assert not shared, f"left in shared memory: {shared}"
    steps = cwd / "steps.json"
    ranks = read_ranks(cwd / "records") if (cwd / "records").exists() else []
    return Both(plain, served, ranks, json.loads(steps.read_text()) if steps.exists() else {})


def _start(command: tuple[str, ...], cwd: Path, mark: str) -> programs.Program:
    return programs.Program(
        [sys.executable, *command],
        env={**environment(cwd), MARK: mark},
        cwd=cwd,
        stdout=programs.PIPE,
        stderr=programs.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C goes to a group of its own
    )


def _marked(mark: str) -> list[str]:
    """Command lines of the living processes of a trial, whoever their parent is; they may take a moment to end."""
    wanted = f"{MARK}={mark}".encode()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                pid, ours = int(process.name), wanted in (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if ours and _outlives(pid):
                return [(process / "cmdline").read_bytes().replace(b"\0", b" ").decode()]
    return []


def _outlives(pid: int) -> bool:
    """Whether a process is still there after some time of grace."""
    import select

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return not poll.poll(5000)
    finally:
        os.close(descriptor)
