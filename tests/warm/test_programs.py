"""A program forked from the warm server is in all that it can see what it is when python itself starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.records.events import LoaderOpened
from stoker.records.runlog import read_run
from tests.waiting import await_that
from tests.warm import programs

pytestmark = pytest.mark.integration

FACTS = """
import json, os, sys, tempfile
import helper
import torch
from torch.utils.data import DataLoader

class Rows(list):
    pass

def cleaned(name):
    with open(f"/proc/self/{name}") as file:
        return sorted(filter(None, file.read().split("\\0")))

main = sys.modules["__main__"]
batches = [batch.tolist() for batch in DataLoader(Rows(range(64)), batch_size=8, num_workers=2)]
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(),
    "main": [__name__, __file__, __spec__ and __spec__.name, main.__dict__ is globals(), main.__doc__],
    "environ": dict(os.environ), "environ in /proc": cleaned("environ"), "cmdline": cleaned("cmdline"),
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:3], "temporary": tempfile.gettempdir(),
    "session": os.getsid(0) == os.getpid(), "threads": torch.get_num_threads(), "stdin": sys.stdin.read(),
    "stdout": [sys.stdout.line_buffering, sys.stdout.write_through], "batches": batches,
    "a child": os.waitpid(os.spawnlp(os.P_NOWAIT, "true", "true"), 0)[1], "writes": not sys.dont_write_bytecode,
}))
print("to stderr", file=sys.stderr)
"""
SERVED = ("-m", "stoker", "run", "--quiet", "--run-dir", "run")
Start = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "facts.py").write_text(FACTS)
    (tmp_path / "helper.py").touch()
    return tmp_path


def both(folder: Path, *words: str, **more: Any) -> tuple[Any, Any]:
    """What a command gives, started by `exec` and forked."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    options = {"cwd": folder, "env": env, "capture_output": True, "text": True, "timeout": 60, **more}
    started, forked = [how([sys.executable, *words], **options) for how in (subprocess.run, programs.run)]
    return started, forked


@pytest.mark.slow("starts python and torch as well")
@pytest.mark.parametrize(
    "words",
    [
        ("facts.py", "1", "-v"),
        ("-m", "facts", "x"),
        ("-c", FACTS.replace("__file__", "''"), "y"),
        (*SERVED, "facts.py"),
    ],
    ids=["script", "module", "text", "served"],
)
def test_the_same_facts(words: tuple[str, ...], folder: Path) -> None:
    started, forked = both(folder, *words, stdin=subprocess.DEVNULL)
    assert started.returncode == 0, started.stderr
    assert forked.stderr == started.stderr == "to stderr\n"
    expected, found = json.loads(started.stdout), json.loads(forked.stdout)
    if words[:2] == SERVED[:2]:
        expected["environ"].pop("STOKER_ACTIVE"), found["environ"].pop("STOKER_ACTIVE")  # has the process id
        for facts in (expected, found):
            facts["environ in /proc"] = [e for e in facts["environ in /proc"] if not e.startswith("STOKER_ACTIVE")]
    assert found == expected


def test_the_process_is_the_one_that_was_asked_for(folder: Path) -> None:
    """`stoker run` becomes the program, with the process id that it had."""
    text = "import json, os; print(os.getpid(), json.loads(os.environ['STOKER_ACTIVE'])['pid'])"
    with programs.Program([sys.executable, *SERVED, "-c", text], cwd=folder, **PIPES) as program:
        out, _ = program.communicate()
    assert list(map(int, out.split())) == [program.pid] * 2


def test_it_is_served(folder: Path) -> None:
    done = programs.run(
        [sys.executable, *SERVED, "facts.py"], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True
    )
    assert done.returncode == 0
    run = read_run(str(folder / "run"))
    assert [event.tier for event in run.events if isinstance(event, LoaderOpened)][-1] == "elastic"


PIPES: dict[str, Any] = {"stdout": programs.PIPE, "stderr": programs.PIPE, "text": True}
ENDS = {
    "raises": "def f(): raise ValueError('no')\nf()",
    "interrupted": "raise KeyboardInterrupt",
    "exits": "import sys; sys.exit('with words')",
    "exits with 3": "raise SystemExit(3)",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "no python": "1 +",
    "at exit": "import atexit, threading, time\natexit.register(print, 'last')\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print(__name__))).start()",
}


SERVED_ENDS = ("raises", "interrupted", "at exit")


@pytest.mark.parametrize(
    ("before", "end"),
    [*(((), end) for end in ENDS), *((SERVED, end) for end in SERVED_ENDS)],
    ids=[*ENDS, *(f"served, {end}" for end in SERVED_ENDS)],
)
def test_the_same_end(before: tuple[str, ...], end: str, folder: Path) -> None:
    (folder / "ends.py").write_text(("import torch.utils.data\n" if before else "") + ENDS[end])
    started, forked = both(folder, *before, "ends.py")
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


def test_wrong_options_of_the_launcher(folder: Path) -> None:
    started, forked = both(folder, "-m", "stoker", "run", "--wrong", "facts.py")
    assert (forked.returncode, forked.stderr) == (started.returncode, started.stderr)
    assert forked.returncode == 2


def test_a_program_that_is_killed_is_seen_to_end(folder: Path) -> None:
    program = programs.Program([sys.executable, "-c", "input()"], stdin=programs.PIPE, **PIPES, start_new_session=True)
    os.killpg(program.pid, 0)  # its group is there at once
    assert program.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.01)
    os.killpg(program.pid, signal.SIGTERM)
    await_that("its end is known", lambda: program.poll() == -signal.SIGTERM, 5.0)
    program.communicate()


def test_a_program_that_starts_another_is_its_parent(folder: Path) -> None:
    """What `stoker explain` runs comes from a process that was kept ready, as its child."""
    loader = "from torch.utils.data import DataLoader\nfor _ in DataLoader([1, 2]): pass"
    (folder / "child.py").write_text(f"import os\nopen('parent', 'w').write(str(os.getppid()))\n{loader}")
    command = [sys.executable, "-m", "stoker", "explain", "child.py"]
    with programs.Program(command, cwd=folder, **PIPES) as program:
        out, err = program.communicate()
    assert program.returncode == 0, err
    assert "child.py:4" in out
    assert (folder / "parent").read_text() == str(program.pid)


def test_ranks_of_torchrun_are_its_children(folder: Path) -> None:
    """They come from processes that were kept ready, with the environment that torchrun has made for each."""
    (folder / "rank.py").write_text(
        "import os, sys\nis_loaded = 'torch' in sys.modules\n"
        "open(f'rank {os.environ[\"RANK\"]}', 'w').write(f'{os.getppid()} {is_loaded}')"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "rank.py"]
    with programs.Program(command, cwd=folder, **PIPES) as program:
        _, err = program.communicate()
    assert program.returncode == 0, err
    assert [(folder / f"rank {rank}").read_text() for rank in range(2)] == [f"{program.pid} True"] * 2
