"""Whether a step follows each backward pass, read in the source of the program that makes it."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from stoker.run.fitting.looking.gradients import BY_WEIGHT, asked_for, not_followed

PLAIN = """\
def train(batches, optimizer, loss):
    for batch in batches:
        optimizer.zero_grad()
        value = loss(batch)
        value.backward()
        total = value.item()
        optimizer.step()
"""


class Optimizer:
    """Asks about each of its steps."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def zero_grad(self) -> None:
        """As of an optimizer."""

    def step(self) -> None:
        """As of an optimizer."""
        self.reasons.append(not_followed(sys._getframe(1)))


class Loss:
    """Of a batch."""

    def backward(self) -> None:
        """As of a tensor."""

    def item(self) -> float:
        """As of a tensor."""
        return 0.0


def reason(folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said of one pass through the source's loop."""
    file = folder / "train.py"
    file.write_text(source)
    module: Any = types.ModuleType("train")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "train", module)
    exec(compile(source, str(file), "exec"), vars(module))
    optimizer = Optimizer()
    module.train([1], optimizer, lambda _: Loss())
    return optimizer.reasons[-1]


def test_a_step_after_its_backward_pass_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reason(tmp_path, PLAIN, monkeypatch) == ""
    one_line = "def train(b, o, f):\n    for x in b:\n        v = f(x); o.zero_grad(); v.backward(); o.step()\n"
    assert reason(tmp_path, one_line, monkeypatch) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        optimizer.step()", "        if total < 9:\n            optimizer.step()"),
        ("        total = value.item()", "        if value.item() > 9:\n            continue"),
        ("        total = value.item()", "        scheduler = optimizer\n        scheduler.step()"),
        ("        value.backward()", "        if batch:\n            value.backward()"),
        ("        total = value.item()", "        optimizer.param_groups = []"),
    ],
)
def test_what_lies_between_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    source = PLAIN.replace(old, new)
    assert source != PLAIN
    assert "train.py:" in reason(tmp_path, source, monkeypatch)


def test_a_library_that_steps_is_not_read() -> None:
    assert "a library calls" in not_followed(None)


def test_a_source_that_asks_for_gradients_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason(tmp_path, PLAIN, monkeypatch)
    before = asked_for()
    assert "train.py" not in before
    reason(tmp_path, PLAIN + "\ndef show(p):\n    print(p.grad)\n", monkeypatch)
    monkeypatch.setattr("stoker.run.fitting.looking.gradients.own_files", lambda: [tmp_path / "train.py"])
    assert asked_for().endswith("train.py:10 asks for gradients (`grad`)")
    assert asked_for(BY_WEIGHT) == asked_for()
    reason(tmp_path, PLAIN + "\ndef clip(model):\n    nn.utils.clip_grad_norm_(model.parameters(), 1)\n", monkeypatch)
    assert asked_for().endswith("train.py:10 asks for gradients (`clip_grad_norm_`)")
    assert asked_for(BY_WEIGHT) == "", "a norm of all is not a weight's gradient"
    reason(tmp_path, PLAIN + "\ndef clear(p):\n    p.grad = None\n", monkeypatch)
    assert asked_for() == "", "to take it away is not to ask for it"
