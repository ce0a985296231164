"""How long a GPU had nothing to do between an optimizer's step and the next request: from marks in its stream.

One mark behind the optimizer's step, one where the program asks for a batch. Both are taken in some microseconds and
read a step later, when they have passed, so nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_Answer = Callable[[float, float], None]


class CudaMarks:
    """Marks in the stream that is current when an optimizer steps; without a CUDA context it does nothing."""

    def __init__(self) -> None:
        self._step: torch.cuda.Event | None = None
        self._stream: torch.cuda.Stream | None = None
        self._asked: tuple[torch.cuda.Event, torch.cuda.Event, float, _Answer] | None = None

    def stepped(self, optimizer: Any) -> None:
        """Marks the end of an optimizer's step, if its first parameter is on a GPU."""
        if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
            return
        device = next((p.device for group in optimizer.param_groups for p in group["params"]), None)
        if device is None or device.type != "cuda":
            return
        self._stream = torch.cuda.current_stream(device)
        self._step = torch.cuda.Event(enable_timing=True)
        self._step.record(self._stream)

    def asked(self, rest_s: float, answer: _Answer) -> None:
        """Marks the program's request, and answers for the one before, if the device has come that far."""
        before, self._asked = self._asked, None
        if before is not None:
            step, asked, earlier_s, tell = before
            # A device that is a whole step behind had nothing left to wait for.
            tell(earlier_s, step.elapsed_time(asked) / 1e3 if asked.query() else 0.0)
        if self._step is not None and self._stream is not None:
            asked = torch.cuda.Event(enable_timing=True)
            asked.record(self._stream)
            self._asked, self._step = (self._step, asked, rest_s, answer), None
