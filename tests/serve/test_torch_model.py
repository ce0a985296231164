"""Types of torch that clients do not have are refused before a request comes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from stoker.core.errors import ServingError
from stoker.serve.engine import ANY, TensorSpec
from stoker.serve.engines.torch_model import TorchEngine, of_definition


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "dtype"), [(torch.Tensor.bfloat16, torch.bfloat16), (torch.fft.fft, torch.complex64)]
)
def test_an_output_that_clients_cannot_read_is_refused(
    function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    takes = TensorSpec("x", np.dtype(np.float32), (ANY, 4))
    with pytest.raises(ServingError, match=rf"`output` must be of a type that clients have, got {dtype}; convert it"):
        TorchEngine(Of(function), (takes,), by_name=False)


def test_an_input_that_clients_cannot_give_is_refused() -> None:
    with pytest.raises(ServingError, match=r"`x` must be of a type that clients have, got torch\.complex64"):
        of_definition((Of(torch.abs), torch.zeros(1, 4, dtype=torch.complex64)), "make", None, 1)
