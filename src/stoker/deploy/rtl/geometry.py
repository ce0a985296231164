"""Windows over an image: what a unit with a line buffer reads, row by row, and how many rows it must hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import Integers
from stoker.deploy.ir.shapes import windows
from stoker.deploy.ir.values import IntegerValue

ON_ENGINE = "an engine runs it: `stoker deploy rtl --structure engine`"
"""What to do about an operation, or a form of one, that has no unit."""
HANDOVER_CYCLES = 3
"""From the last beat of a row of windows to the places of its rows, which only then are given back."""
Windowed = op.Linear | op.Convolution | op.MaxPool | op.SumPool | op.Mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Windows over images of (height, width, channels); pairs are (y, x).

    Attributes:
        size: height and width.
        channels: of a pixel.
        kernel: taps.
        stride: between windows.
        dilation: between taps.
        padding: above, below, left, right.
        images: of a sample; a dense layer over several vectors has one image of one pixel for each.
    """

    size: tuple[int, int]
    channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    images: int = 1

    @property
    def out(self) -> tuple[int, int]:
        """Windows in y and x."""
        return (
            windows(self.size[0], self.kernel[0], self.stride[0], *self.padding[:2], self.dilation[0]),
            windows(self.size[1], self.kernel[1], self.stride[1], *self.padding[2:], self.dilation[1]),
        )

    @property
    def taps(self) -> int:
        """Taps of a window."""
        return self.kernel[0] * self.kernel[1]

    @property
    def span(self) -> tuple[int, int]:
        """Rows and columns that a window covers."""
        return (self.kernel[0] - 1) * self.dilation[0] + 1, (self.kernel[1] - 1) * self.dilation[1] + 1

    def needs(self) -> list[int]:
        """For each row of windows, the rows of its image that must be there; all rows for the last."""
        reach = max(self.span[0], self.stride[0]) - self.padding[0]
        height, rows = self.size[0], self.out[0]
        return [min(height, row * self.stride[0] + reach) for row in range(rows - 1)] + [height]

    def freed(self) -> list[int]:
        """For each row of windows, the rows of its image that are done with after it; all rows after the last."""
        rows = self.out[0]
        return [max(0, (row + 1) * self.stride[0] - self.padding[0]) for row in range(rows - 1)] + [self.size[0]]

    def ring_rows(self, row_cycles: int = HANDOVER_CYCLES) -> int:
        """Rows of a line buffer with which neither side ever waits for the other at an equal pace.

        While the rows of one row of windows are held, those of the next come in: within an image a stride of them, at
        its end the first ones of the next image. What more there is takes up the cycles in which rows are handed over.

        Args:
            row_cycles: in which a row comes in, at the unit's pace.
        """
        needs, freed = self.needs(), [0, *self.freed()]
        held = [need - gone for need, gone in zip(needs, freed, strict=False)]
        ahead = [later - need for need, later in zip(needs, [*needs[1:], self.size[0] + needs[0]], strict=True)]
        most = max(one + more for one, more in zip(held, ahead, strict=True))
        return most + max(1, -(-HANDOVER_CYCLES // max(1, row_cycles)))


def windows_of(
    operation: Windowed, values: Mapping[str, IntegerValue], constants: Mapping[str, Integers]
) -> Windows:  # fmt: skip
    """The windows that an operation looks at.

    Raises:
        ValueError: a shape that has no such unit.
    """
    shape = values[operation.source].shape
    if isinstance(operation, op.Linear):
        return Windows(size=(1, 1), channels=shape[-1], images=math.prod(shape[:-1]))
    if len(shape) != 3:
        raise ValueError(f"`{operation.output}`: its input must be (height, width, channels), got {shape}; {ON_ENGINE}")
    size, channels = (shape[0], shape[1]), shape[2]
    if isinstance(operation, op.Mean):
        if operation.axes != (0, 1):
            raise ValueError(
                f"`{operation.output}`: a mean must be over height and width, got axes {operation.axes}; {ON_ENGINE}"
            )
        return Windows(size=size, channels=channels, kernel=size)
    if isinstance(operation, op.Convolution):
        rows, columns = constants[operation.weight].shape[1:3]
        kernel, dilation = (int(rows), int(columns)), operation.dilation
    else:
        kernel = operation.kernel
        dilation = operation.dilation if isinstance(operation, op.MaxPool) else (1, 1)
    found = Windows(
        size=size, channels=channels, kernel=kernel, stride=operation.stride, dilation=dilation,
        padding=operation.padding,
    )  # fmt: skip
    if max(operation.padding[:2]) >= found.span[0] or max(operation.padding[2:]) >= found.span[1]:
        raise ValueError(f"`{operation.output}`: its padding must be less than its window, got {operation.padding}")
    return found
