"""The last row of a rendered terminal, beside all that a program and what it starts may write there."""

from __future__ import annotations

import signal

import pytest

from stoker.ui.terminal import drawing, fresh_line
from tests.ui.screen import Terminal, run_on_terminal

pytestmark = pytest.mark.integration

PRELUDE = """
import os, subprocess, sys
from stoker.ui.terminal import StatusLine
line = StatusLine(sys.stderr)
draw = lambda text="LIVE " + "." * 40: line.draw(text)
"""
LIVE = "LIVE " + "." * 40

WRITERS = {
    "print": ("print('one\\ntwo\\nthree')", ["one", "two", "three"]),
    "both streams": ("print('one'); print('two', file=sys.stderr); print('three')", ["one", "two", "three"]),
    "begun line": ("print('one ', end='', flush=True); draw(); print('more')", ["one more"]),
    "shell": ("os.system('echo one; echo two; printf three; echo')", ["one", "two", "three"]),
    "child": ("subprocess.run(['sh', '-c', 'echo one >&2; echo two; echo three'])", ["one", "two", "three"]),
    "child left alone": (
        "child = subprocess.Popen(['sh', '-c', 'for n in 1 2 3; do echo one; echo two; done'])\n"
        "for _ in range(50): draw()\n"
        "child.wait()",
        ["one", "two"] * 3,
    ),
    "descriptor": ("os.write(1, b'one\\ntwo\\n'); os.write(2, b'three\\n')", ["one", "two", "three"]),
    "C library": (
        "import ctypes; libc = ctypes.CDLL(None); libc.printf(b'one\\ntwo\\nthree\\n'); libc.fflush(None)",
        ["one", "two", "three"],
    ),
    "forked child": ("if os.fork() == 0: os.write(1, b'one\\ntwo\\n'); os._exit(0)\nos.wait()", ["one", "two"]),
    "traceback": (
        "try: 1 / 0\nexcept ZeroDivisionError: sys.excepthook(*sys.exc_info())",
        ["Traceback (most recent call last):", "ZeroDivisionError: division by zero"],
    ),
    "wide characters": ("print('路径 ' * 30)", ["路径 " * 20, "路径 " * 9 + "路径"]),
    "bar": (
        "for number in range(5): sys.stderr.write(f'\\rbar {number}/4'); draw()\nsys.stderr.write('\\n')",
        ["bar 4/4"],
    ),
}


@pytest.mark.parametrize("filled", [0, 40])
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_written_stays_whole_and_nothing_of_ours_in_it(writer: str, filled: int) -> None:
    """At the top of the screen and at its bottom, where every line scrolls."""
    code, expected = WRITERS[writer]
    rows = [f"row {number}" for number in range(filled)]
    body = f"for number in range({filled}): print('row', number)\ndraw()\n{code}\nprint('after')\ndraw()\nline.close()"
    terminal = run_on_terminal(PRELUDE + body, rows=12)
    found = [text.rstrip() for text in [*terminal.history(), *terminal.lines()]]
    if writer == "traceback":
        found = [text for text in found if not text.startswith(" ")]
    assert found == [*rows, *(text.rstrip() for text in expected), "after"]
    assert terminal.screen.margins is None


def test_tqdm_bars_stay_whole() -> None:
    pytest.importorskip("tqdm")
    body = """
from tqdm import tqdm
for epoch in tqdm(range(2), desc="epochs", ncols=60, mininterval=0):
    for _ in tqdm(range(40), desc="steps", ncols=60, mininterval=0, miniters=1):
        draw()
line.close()
"""
    lines = run_on_terminal(PRELUDE + body, rows=8).lines()
    assert [text.split(":")[0] for text in lines] == ["steps", "steps", "epochs"], lines
    assert all("100%" in text for text in lines)


def test_rich_display_and_prints_stay_whole() -> None:
    pytest.importorskip("rich")
    body = """
from rich.console import Console
from rich.progress import Progress
console = Console()
console.print("[bold]before[/bold]")
with Progress(console=console, auto_refresh=False) as progress:
    task = progress.add_task("steps", total=20)
    for number in range(20):
        draw()
        progress.update(task, advance=1, refresh=True)
        if number % 10 == 0:
            console.print("at", number)
print("after")
line.close()
"""
    lines = run_on_terminal(PRELUDE + body, rows=8).lines()
    assert lines[:3] == ["before", "at 0", "at 10"], lines
    assert lines[3].startswith("steps ")
    assert "100%" in lines[3]
    assert lines[4:] == ["after"]


@pytest.mark.parametrize("filled", [0, 40])
def test_answers_are_typed_on_a_line_of_their_own(filled: int) -> None:
    body = f"""
import getpass
for number in range({filled}): print("row", number)
draw()
answer = input("continue [y/n]? ")
draw()
secret = getpass.getpass()
draw()
print("got", answer, secret)
line.close()
"""
    with Terminal(PRELUDE + body, rows=10) as terminal:
        terminal.await_line("continue [y/n]?")
        assert terminal.last_row == LIVE
        terminal.type("yes\n")
        terminal.await_line("Password:")
        assert terminal.last_row == LIVE
        terminal.type("hidden\n")
        terminal.finish()
    assert terminal.lines()[-3:] == ["continue [y/n]? yes", "Password:", "got yes hidden"]


@pytest.mark.parametrize("way", ["breakpoint()", "import pdb; pdb.set_trace()", "stop()"])
def test_debugger_has_lines_of_its_own(way: str) -> None:
    body = f"""
def stop():
    import pdb
    try: 1 / 0
    except ZeroDivisionError: pdb.post_mortem()
def loop():
    for step in range(3):
        draw()
        {way}
loop()
line.close()
"""
    with Terminal(PRELUDE + body, rows=10) as terminal:
        for _ in range(3):
            terminal.await_screen(_prompts)
            terminal.type("p 'seen'\n")
            terminal.await_screen(lambda lines: "'seen'" in lines and _prompts(lines))
            assert terminal.last_row == LIVE
            assert sum("LIVE" in text for text in terminal.lines()) == 1
            terminal.type("!print('\\n' * 12)\n")
            terminal.await_screen(lambda lines: "'seen'" not in lines and _prompts(lines))
            terminal.type("c\n")
        terminal.finish()
    assert all("LIVE" not in text for text in [*terminal.history(), *terminal.lines()])


def _prompts(lines: list[str]) -> bool:
    return [text for text in lines[:-1] if text][-1:] == ["(Pdb)"]


def test_resized_window_leaves_nothing_behind() -> None:
    body = """
draw()
print("one")
input()
draw()
print("two"); print("three")
input()
draw("narrow")
os.write(1, b"four\\nfive\\n")
line.close()
"""
    with Terminal(PRELUDE + body, rows=8) as terminal:
        terminal.await_line("one")
        terminal.resize(70, 16)
        terminal.type("\n")
        terminal.await_line("three")
        assert terminal.last_row == LIVE
        assert terminal.lines()[:5] == ["one", "", "two", "three", ""]
        terminal.resize(30, 16)
        terminal.type("\n")
        terminal.finish()
    assert terminal.lines() == ["one", "", "two", "three", "", "four", "five"]


def test_margins_that_a_child_took_away_come_back() -> None:
    body = """
for number in range(20): print("row", number)
draw()
os.write(1, b"\\x1b[r\\x1b[2J\\x1b[12;1Hof an editor\\n")
draw()
print("after"); print("that")
line.close()
"""
    terminal = run_on_terminal(PRELUDE + body, rows=12)
    assert terminal.lines()[-3:] == ["of an editor", "after", "that"]
    assert all("LIVE" not in text for text in [*terminal.history(), *terminal.lines()])


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), 9)", "os.killpg(0, 9)", "os._exit(3)", "os.abort()"])
def test_program_that_ends_at_once_leaves_the_terminal_in_order(ending: str) -> None:
    with Terminal(PRELUDE + f"print('one')\ndraw()\nprint('two')\n{ending}", rows=10) as terminal:
        terminal.finish()
    assert terminal.lines() == ["one", "two"]
    assert terminal.screen.margins is None
    assert terminal.status in (-signal.SIGKILL, 3, -signal.SIGABRT)


def test_no_room_no_line() -> None:
    assert "LIVE" not in run_on_terminal(PRELUDE + "assert not draw(); print('x'); line.close()", rows=3).text


def test_line_that_is_said_begins_at_the_start_of_a_line() -> None:
    body = "print('begun', end='', flush=True)\ndraw()\nline.say('said')\nline.say('again')\nprint('on')\nline.close()"
    assert run_on_terminal(PRELUDE + body).lines() == ["begun", "said", "again", "on"]


def test_program_has_no_child_more_and_its_streams_are_its_own() -> None:
    body = """
before = sys.stdout.write, sys.stderr.write
draw()
assert "write" not in vars(sys.stdout) and "write" not in vars(sys.stderr)
try: os.waitpid(-1, os.WNOHANG)
except ChildProcessError: print("no child")
line.close()
"""
    assert run_on_terminal(PRELUDE + body).lines() == ["no child"]


def test_drawing_moves_no_cursor() -> None:
    import pyte

    screen = pyte.Screen(40, 6)
    stream = pyte.Stream(screen)
    stream.feed("one\r\nbegun")
    stream.feed(drawing("line", 6))
    assert (screen.cursor.y, screen.cursor.x) == (1, 5)
    assert screen.display[5].rstrip() == "line"
    stream.feed(fresh_line(40))
    assert (screen.cursor.y, screen.cursor.x) == (2, 0)
    stream.feed(fresh_line(40))
    assert (screen.cursor.y, screen.cursor.x) == (2, 0)
