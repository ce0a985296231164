"""A notebook's loaders are named by their cells, and its next commands can be typed into another one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "cells.py"


@pytest.mark.integration
def test_cells(tmp_path: Path) -> None:
    pytest.importorskip("IPython", reason="needs IPython, which `make setup` does not install")
    done = subprocess.run([sys.executable, PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "samples of In[3]:2" in done.stdout
    assert "stoker run" not in done.stdout
    assert "`loader.dataset[13]`" in done.stdout
    assert '`stoker.feeding(on_bad_sample="skip")`' in done.stdout
