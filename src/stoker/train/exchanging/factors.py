# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (autograd's functions and modules' hooks are untyped)
"""What the gradients of layers are products of: inputs, and gradients of outputs, captured next to the gradients.

A forward hook passes a layer's output through an identity whose backward pass notes both. The input is kept by
``save_for_backward``, so that checkpointing drops and recomputes it like any other. The weight's own gradient is
computed as ever: it is what the factors are checked against.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from stoker.train.exchanging import compiled_factors

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_HALVES = (torch.float16, torch.bfloat16)


class _Noted(torch.autograd.Function):
    """The identity on a layer's output."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, rows: torch.Tensor, layer: FactoredLayer) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.layer = layer
        # Not a view: programs write into a layer's output, which autograd forbids for views of functions such as this.
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *arrived: Any) -> Any:
        (rows,) = ctx.saved_tensors
        ctx.layer.note(rows, arrived[0])
        return arrived[0], None, None


class FactoredLayer:
    """Captures the factors of one weight, between two exchanges.

    The gradient is ``left.T @ right``: of K x M and K x N, where the weight is stored as M x N.

    Args:
        name: of the weight.
        module: that multiplies by it.
        is_turned: whether the weight is stored as inputs x outputs.
    """

    def __init__(self, name: str, module: nn.Module, *, is_turned: bool) -> None:
        weight = cast("nn.Parameter", module.weight)
        self.name = name
        self.is_turned = is_turned
        self.shape = (weight.shape[0], math.prod(weight.shape[1:]))
        self.enabled = False
        self.why_not = ""
        """What the layer does that makes its gradient another one."""
        self._module = module
        self._noted: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._rows = 0
        self._room: int | None = None
        self._number = compiled_factors.number_of(self)
        self._hook: Any = None

    @property
    def hook(self) -> Any:
        """The handle of the hook on the layer; None where there is none."""
        return self._hook

    @property
    def widths(self) -> tuple[int, int]:
        """Width of the layer's input, and of its output."""
        return self.shape if self.is_turned else (self.shape[1], self.shape[0])

    def install(self) -> None:
        """Passes the layer's outputs through the identity from now on, while :attr:`enabled`."""
        if self._hook is None:
            self._hook = self._module.register_forward_hook(self._passed)

    def remove(self) -> None:
        """Leaves the layer as it was."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self.enabled = False
        self.drop()

    def limit(self, rows: int | None) -> None:
        """Keeps no more than so many rows until they are taken; None for no limit."""
        self._room = rows

    def take(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The factors since the last exchange, in the type that multiplied; None where there are none.

        Raises:
            OverflowError: there were more rows than the limit.
        """
        noted, rows = self._noted, self._rows
        self.drop()
        if self._room is not None and rows > self._room:
            raise OverflowError(rows)
        if not noted:
            return None
        inputs = noted[0][0] if len(noted) == 1 else torch.cat([each for each, _ in noted])
        arrived = noted[0][1] if len(noted) == 1 else torch.cat([each for _, each in noted])
        return (inputs, arrived) if self.is_turned else (arrived, inputs)

    def drop(self) -> None:
        """Forgets the factors."""
        self._noted, self._rows = [], 0

    def _passed(self, _: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        if torch.compiler.is_compiling():
            # What is asked here is compiled in; whether factors are wanted is asked when they come.
            if not inputs or not isinstance(output, torch.Tensor) or not output.requires_grad:
                return None
            return compiled_factors.pass_factors(output, inputs[0], self._number)
        if not (self.enabled and torch.is_grad_enabled() and inputs and isinstance(output, torch.Tensor)):
            return None
        weight = cast("nn.Parameter", self._module.weight)
        if not (output.requires_grad and weight.requires_grad and isinstance(inputs[0], torch.Tensor)):
            return None
        return _Noted.apply(output, inputs[0], self)

    def note(self, rows: torch.Tensor, arrived: torch.Tensor) -> None:
        """Keeps a layer's input and the gradient of its output.

        Args:
            rows: the input, as the layer got it.
            arrived: the gradient of its output.
        """
        if not self.enabled:
            return
        inner, outer = self.widths
        with torch.no_grad():
            inputs, outputs = self._as_rows(rows.detach(), inner), self._as_rows(arrived.detach(), outer)
            if inputs is None or outputs is None or inputs.shape[0] != outputs.shape[0]:
                self.why_not = "it is multiplied at more than one position"
                return
            if outputs.dtype in _HALVES and inputs.dtype != outputs.dtype:
                inputs = inputs.to(outputs.dtype)  # autocast multiplied in this type
        self._rows += inputs.shape[0]
        if self._room is None or self._rows <= self._room:
            self._noted.append((inputs, outputs))
        else:
            self._noted.clear()  # the memory that was agreed on holds; taking them will say so

    def _as_rows(self, tensor: torch.Tensor, width: int) -> torch.Tensor | None:
        if isinstance(self._module, _CONVOLUTIONS):
            tensor = tensor.reshape(tensor.shape[0], -1) if tensor.dim() == self._dims + 2 else tensor.reshape(1, -1)
            return tensor if tensor.shape[1] == width else None
        return tensor.reshape(-1, width) if tensor.dim() and tensor.shape[-1] == width else None

    @property
    def _dims(self) -> int:
        return len(cast("Any", self._module).kernel_size)


def factored_layers(model: nn.Module) -> Iterator[tuple[nn.Module, FactoredLayer]]:
    """The layers of a model whose gradients can be products, with what captures them.

    A weight that several modules use is left out: its gradient is the sum of what all of them make.
    """
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for path, module in model.named_modules():
        weight = dict(module.named_parameters(recurse=False)).get("weight")
        turned = _turned(module)
        if weight is not None and turned is not None and uses[id(weight)] == 1 and weight.requires_grad:
            yield module, FactoredLayer(f"{path}.weight" if path else "weight", module, is_turned=turned)


def _turned(module: nn.Module) -> bool | None:
    """Whether a layer's weight is stored as inputs x outputs; None for layers that are no product."""
    forward = type(module).forward
    if isinstance(module, nn.Linear) and forward is nn.Linear.forward:
        return False
    if isinstance(module, _CONVOLUTIONS) and any(forward is kind.forward for kind in _CONVOLUTIONS):
        # Over one position: the weights see the whole input, which then is a row.
        is_plain = module.groups == 1 and not any(each != 0 for each in _padding(module))
        return False if is_plain and max(module.kernel_size) > 1 else None
    # Of the transformers library, known by its name: the library belongs to the program.
    if type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils":
        return True
    return None


def _padding(module: nn.Module) -> tuple[Any, ...]:
    found: Any = cast("Any", module).padding
    return ("text",) if isinstance(found, str) else tuple(found)
