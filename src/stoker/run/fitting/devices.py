"""What a program is to fit into: the memory that its user names, or that of this machine's GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker.core.errors import ConfigError

EMULATED = "emulated device"
"""What the budget of a program on CPUs is of: bytes of its tensors, counted while it runs."""
_ASK = """\
import json, torch
found = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
print(json.dumps([found.name, found.total_memory] if found else []))"""
_LIMIT_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class FitDevice:
    """Where a program is to fit.

    Attributes:
        name: for people.
        budget: bytes.
        target: whose kernels the program runs.
    """

    name: str
    budget: int
    target: Literal["cuda", "cpu"]

    @property
    def emulated(self) -> bool:
        """Whether bytes of tensors are counted while it runs on CPUs."""
        return self.target == "cpu"


def device_of(size: int | None) -> FitDevice:
    """The device of this machine, with what is stated or what it has.

    Args:
        size: stated bytes; None for the GPU's own.

    Raises:
        ConfigError: nothing is stated, and there is no GPU.
    """
    found = _gpu()
    if found is not None:
        return FitDevice(name=found[0], budget=size if size is not None else found[1], target="cuda")
    if size is None:
        raise ConfigError(
            "`--fit` must know the memory to fit into, and this machine shows no GPU; say it: --device-memory 20GB"
        )
    return FitDevice(name=EMULATED, budget=size, target="cpu")


def _gpu() -> tuple[str, int] | None:
    """Name and bytes of the first GPU that torch sees; asked in another process, where there is a driver."""
    if not any(Path(place).exists() for place in ("/dev/nvidiactl", "/dev/dxg")):
        return None
    try:
        done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, check=True, timeout=_LIMIT_S)
        found: list[object] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return (str(found[0]), int(str(found[1]))) if found else None
