"""Names of files that are no UTF-8: a run in such a folder, of such a script, is recorded and reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = b"""
import torch
for batch in torch.utils.data.DataLoader(range(64), batch_size=4, num_workers=1):
    pass
"""


@pytest.mark.slow("four commands, two of which load torch")
@pytest.mark.integration
def test_names_that_are_no_text(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/d\xff"
    os.mkdir(folder)
    with open(folder + b"/tr\xe4in.py", "wb") as file:
        file.write(PROGRAM)

    def stoker(*words: str | bytes) -> str:
        command = [sys.executable, "-m", "stoker", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return (done.stdout + done.stderr).decode()

    assert r"of tr\xe4in.py:3" in stoker("run", "--run-dir", b"ru\xfc", b"tr\xe4in.py", b"--data=\xfe")
    found = json.loads(stoker("report", b"ru\xfc", "--json"))
    assert (found["loaders"][0]["site"], found["argv"][-1]) == (r"tr\xe4in.py:3", r"--data=\xfe")
    assert r"wrote r\xfc.html" in stoker("report", b"ru\xfc", "--html", b"r\xfc.html")
    assert r"made at tr\xe4in.py:3" in stoker("explain", b"tr\xe4in.py")
