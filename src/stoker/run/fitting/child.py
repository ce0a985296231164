"""Traces a program with a plan that makes it fit, or with autocast; without either looks at what can be done to it.

The same code acts here and in the program's own process.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

from stoker.core.texts import to_json
from stoker.perf.features import child
from stoker.perf.features.tracing.distributed import paths
from stoker.perf.features.tracing.recorder import DispatchRecorder
from stoker.perf.features.tracing.watch import StepFollower
from stoker.records.fitting import FitPlan
from stoker.run.fitting.looking.gradients import own_files
from stoker.run.fitting.looking.model import ModelLook
from stoker.run.fitting.looking.reading import ReadFiles, of_library
from stoker.run.fitting.tracing import BF16
from stoker.train.fitting.applying import AppliedPlan


class Looking:
    """Looks at the program's model while it is traced.

    Args:
        out: where what was found is written.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._look = ModelLook()
        self._reads = ReadFiles()
        self._reads.install()
        self._recorder: DispatchRecorder | None = None
        self._watch: StepFollower | None = None

    def start(self, recorder: DispatchRecorder, watch: StepFollower) -> None:
        """Looks from now on."""
        self._recorder, self._watch = recorder, watch
        self._look.install()

    def stepped(self) -> None:
        """Writes what was found."""
        assert self._recorder is not None
        assert self._watch is not None
        self._look.remove()
        watch = self._watch
        found = self._look.found(
            watch.root, watch.optimizers.values(), compiled=self._recorder.compiled, passes_by_hand=watch.passes_by_hand
        )
        loaded = (name for each in own_files() if not of_library(name := str(each.absolute())))
        reads = self._reads.names()
        reads = None if reads is None else tuple(dict.fromkeys((*loaded, *reads)))
        self._out.write_bytes(to_json(msgspec.structs.replace(found, reads=reads)))

    def stop(self) -> None:
        """Looks no more."""
        self._look.remove()


class Autocasting:
    """Computes the forward passes of the program's models under torch's autocast to bf16, while it is traced."""

    def __init__(self) -> None:
        self._depth = 0
        self._cast: Any = None

    def start(self, recorder: DispatchRecorder, watch: StepFollower) -> None:
        """Does so from now on."""
        registry: Any = importlib.import_module("torch.nn.modules.module")
        registry.register_module_forward_pre_hook(self._enter)
        registry.register_module_forward_hook(self._leave, always_call=True)

    def _enter(self, *_: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._cast = torch.autocast("cpu", dtype=torch.bfloat16)
            self._cast.__enter__()

    def _leave(self, *_: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._cast.__exit__(None, None, None)

    def stepped(self) -> None:
        """There is nothing to write."""

    def stop(self) -> None:
        """What is registered ends with the process."""


class Applying:
    """Applies a plan to the program while it is traced.

    Args:
        plan: that is to be certified.
        out: where the reasons of what could not be applied are written.
    """

    def __init__(self, plan: FitPlan, out: Path) -> None:
        self._out = out
        self._plan = AppliedPlan(plan, paths)

    def start(self, recorder: DispatchRecorder, watch: StepFollower) -> None:
        """Applies it from now on."""
        recorder.buffers.is_away = self._plan.is_away
        self._plan.install()

    def stepped(self) -> None:
        """Writes what could not be applied."""
        self._out.write_bytes(to_json(self._plan.left))

    def stop(self) -> None:
        """Applies it no more."""
        self._plan.remove()


def main() -> None:
    """Arguments: a file with a plan, ``-`` or ``bf16``, where to write, then those of tracing."""
    plan, out = sys.argv[1:3]
    del sys.argv[1:3]
    if plan == "-":
        child.main(Looking(Path(out)))
    elif plan == BF16:
        child.main(Autocasting())
    else:
        child.main(Applying(msgspec.json.decode(Path(plan).read_bytes(), type=FitPlan), Path(out)))


if __name__ == "__main__":
    main()
