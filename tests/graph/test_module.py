"""The recorded calls as a ``torch.fx.GraphModule``: it computes what the program computed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx

from stoker.graph.cut_control import CutVerdict
from stoker.graph.replay.module import to_module
from tests.graph.loop import check, frozen
from tests.graph.test_substitution import batches, program

pytestmark = pytest.mark.timeout(30)
MEAN = torch.tensor([0.1, 0.2, 0.3, 0.4])


def step(number: int, x: torch.Tensor, ids: torch.Tensor) -> list[torch.Tensor]:
    """Properties, slices, outside tensors, keywords, and several results in each kind of container."""
    scaled = (x - MEAN) * 2
    low, high = scaled.chunk(2, dim=1)
    values, where = torch.cos(x).max(1)
    turned = scaled.T.mT + x.real
    rows = torch.stack([*torch.unbind(torch.exp(x), 0)][::2])
    picked = torch.where(ids[:, None] % 3 == 0, turned, x[:, [1, 0, 3, 2]])[1::2, ..., :3]
    return [low + high, values, where, turned, rows, picked, torch.nn.functional.one_hot(ids, num_classes=100)]


def verdict() -> CutVerdict:
    return check(program(step), batches).verdicts[-1]


def bits(tensors: Any) -> set[bytes]:
    return {frozen(tensor)[-1] for tensor in tensors}


def test_the_module_computes_what_the_program_keeps():
    found = verdict()
    kept = to_module(found.recording)(*batches(7))
    assert bits(step(7, *batches(7))) <= bits(kept)
    sent = to_module(found.recording, found.cut.boundary)(*batches(7))
    assert len(sent) == len(found.cut.boundary) > 5
    assert bits(sent) & bits(kept)


def test_the_module_is_one_for_people_and_tools():
    found = verdict()
    module = to_module(found.recording)
    assert isinstance(module, fx.GraphModule)
    module.graph.lint()
    assert [tuple(buffer.shape) for buffer in module.buffers()] == [(4,)]
    calls = {node.meta["number"]: node for node in module.graph.nodes if "number" in node.meta}
    assert set(calls) == {node.number for node in found.graph.nodes if not node.state and node.outputs}
    assert all(node.meta["seconds"] > 0 and "test_module.py:" in node.meta["site"] for node in calls.values())

    def results(made: fx.GraphModule) -> Any:
        return frozen(made(*batches(3)))

    again = fx.GraphModule(module, copy.deepcopy(module.graph))
    again.recompile()
    assert results(copy.deepcopy(module)) == results(again) == results(module)
