"""A call of a model, written down and made again: what counts of it is the same."""

from __future__ import annotations

import msgspec
import pytest
import torch

from stoker.core.texts import to_json
from stoker.records.fitting import ModelCall
from stoker.run.fitting.looking.calls import written
from stoker.train.staging.examples import casting, example_of

CPU = torch.device("cpu")


def test_a_call_is_made_again_of_what_was_written() -> None:
    x = torch.ones(3, 4, dtype=torch.bfloat16, requires_grad=True)
    ids = torch.ones(2, 5, dtype=torch.int64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call = written((x, [ids, None], (1, 2.0)), {"mask": ids > 0, "given": {"scale": 0.5, "name": "a", "on": True}})
    call = msgspec.json.decode(to_json(call), type=ModelCall)
    args, kwargs = example_of(call, CPU)
    assert (args[0].shape, args[0].dtype, args[0].requires_grad) == (x.shape, x.dtype, True)
    assert (args[1][0].shape, args[1][0].dtype, args[1][1]) == (ids.shape, ids.dtype, None)
    assert args[2] == (1, 2.0)
    assert (type(args[2][0]), type(args[2][1])) == (int, float)
    assert kwargs["mask"].dtype == torch.bool
    assert kwargs["given"] == {"scale": 0.5, "name": "a", "on": True}
    with casting(call, CPU):
        assert torch.is_autocast_enabled("cpu")
    with casting(written((x,), {}), CPU):
        assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "a value of type object"),
        (float("nan"), "a value of type float"),
        ({1: 2}, "a dict whose keys are not text"),
        (torch.eye(2).to_sparse(), "a tensor of torch.sparse_coo"),
        (torch.Size((1, 2)), "a value of type Size"),
    ],
)
def test_other_arguments_are_named(value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        written((value,), {})
