"""`stoker run` on a rendered terminal: what a person sees of the program, of the live line and of the report."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.ui.screen import Terminal

pytestmark = pytest.mark.integration

PROGRAM = """
import os, time
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self): return 400
    def __getitem__(self, index):
        if index % 50 == 0: print(f"making\\nindex {index}")
        return torch.tensor(index)

for number, batch in enumerate(DataLoader(Rows(), batch_size=4, num_workers=2)):
    time.sleep(0.02)
    if number % 10 == 9: os.system("echo from a child; echo and more")
    if number == 79 and input("go on [y/n]? ") == "n": os.kill(os.getpid(), 9)
print("the end")
"""


def start(folder: Path) -> Terminal:
    script = folder / "train.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "stoker", "run", "--run-dir", str(folder / "run"), str(script)]
    return Terminal(f"import os; os.chdir({str(folder)!r}); os.execv({sys.executable!r}, {command})", rows=24)


def program_lines(terminal: Terminal) -> list[str]:
    return [line for line in [*terminal.history(), *terminal.lines()] if line]


@pytest.mark.slow("starts python and torch in a terminal")
@pytest.mark.parametrize("answer", ["y", "n"])
def test_everything_has_lines_of_its_own(tmp_path: Path, answer: str) -> None:
    with start(tmp_path) as terminal:
        terminal.await_screen(lambda lines: lines[-2:-1] == ["go on [y/n]?"] and "samples/s" in lines[-1])
        terminal.type(f"{answer}\n")
        terminal.finish()
    lines = program_lines(terminal)
    asked = lines.index(f"go on [y/n]? {answer}")
    allowed = {"making", "from a child", "and more", *(f"index {index}" for index in range(0, 400, 50))}
    assert set(lines[:asked]) <= allowed, lines
    assert lines.count("and more") == (10 if answer == "y" else 8)
    assert terminal.screen.margins is None
    assert not any(line.startswith("stoker  ") for line in lines)
    if answer == "y":
        assert lines[asked + 1 :].count("the end") == 1
        assert any("· finished after" in line for line in lines)
