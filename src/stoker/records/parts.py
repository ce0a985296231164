"""The parts of a step's time: one list for measurements and predictions, and the tables that fold it."""

from __future__ import annotations

from collections.abc import Mapping

PARTS: tuple[str, ...] = ("input", "copy", "compute", "memory", "host", "communication", "optimizer", "other")
"""In the order in which they are shown: waiting for input; copying it to the device; products, convolutions, attention
and recurrent layers; all other operations of the model, which move more than they compute; launching by the host that
the device waits for; exchange between GPUs that computation does not hide; the optimizer; what has no other name.
`stoker profile` measures each of them."""

Folding = Mapping[str, tuple[str, ...]]
"""The parts in each row, by its name. Each part is in one row, in the order of ``PARTS``."""

PREDICTED: Folding = {
    "input": ("input", "copy"),
    **{part: (part,) for part in PARTS if part not in ("input", "copy")},
}
"""The rows of a prediction, and of a measurement compared with one: input wait and copy are one row."""

REPORTED: Folding = {
    "input wait": ("input",),
    "copy to device": ("copy",),
    "compute": ("compute", "memory", "host", "communication", "optimizer"),
    "other": ("other",),
}
"""The rows of `stoker report`: what marks around `next` and the optimizer's step tell apart, without a profiler."""


def fold(seconds: Mapping[str, float], folding: Folding) -> dict[str, float]:
    """Seconds by row, from seconds by part; a part that is not named took none."""
    return {row: sum(seconds.get(part, 0.0) for part in parts) for row, parts in folding.items()}
