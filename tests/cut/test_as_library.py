"""`stoker.cut(loader)` in a program of its own: the cut as text, as a picture and as a module."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.warm import programs

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(100),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]

PROGRAM = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import stoker

torch.manual_seed(0)
rows = torch.rand(16 * 100, 8)
loader = DataLoader(TensorDataset(rows), batch_size=16, num_workers=1)
view = stoker.cut(loader)
weight = torch.zeros(8, requires_grad=True)

print(str(view), repr(view), repr(view.outcome), view.verdicts, sep="|")
try:
    view.graph_module()
except LookupError as error:
    print(error)
for (x,) in loader:
    features = torch.log1p(x.T.mT) * 2
    (features @ weight).sum().backward()
print(view.outcome in ("moved", "stayed", "reverted"), len(view.verdicts), view.reason == view.verdicts[0].reason)
(made,) = view.graph_module()(rows[:16])
print(torch.equal(made, torch.log1p(rows[:16]) * 2))
print(str(view).splitlines()[0])
with open(sys.argv[1], "w") as file:
    file.write(view._repr_html_())
"""


def test_a_cut_is_shown(tmp_path: Path) -> None:
    script, picture = tmp_path / "show.py", tmp_path / "cut.html"
    script.write_text(PROGRAM)
    command = [sys.executable, str(script), str(picture)]
    done = programs.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    before, none_yet, decided, equal, title = done.stdout.splitlines()
    assert before == "LoaderCut: too few steps so far|<LoaderCut undecided: too few steps so far>|''|[]"
    assert none_yet == "`variant` 0 was not recorded so far; known: []"
    assert decided == "True 1 True"
    assert equal == "True"
    assert title.startswith("Cut of loader 0")
    drawing = ElementTree.fromstring(picture.read_text())
    assert any("log1p" in "".join(element.itertext()) for element in drawing.iter())
