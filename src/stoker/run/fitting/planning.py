"""What `stoker run --fit` decides before the program starts: it is traced, a plan is chosen, and certified.

A program of several ranks is planned elsewhere.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from msgspec.structs import replace

from stoker.core.errors import ConfigError, FitError
from stoker.core.extras import require
from stoker.core.saying import say
from stoker.core.texts import to_json
from stoker.perf.memory.fitting import plan_fit
from stoker.perf.memory.timeline import peak_before, step_peak
from stoker.records.fitting import FitPlan
from stoker.run.fitting.tracing import default_folder, trace, trace_plan
from stoker.run.settings import RunSettings
from stoker.ui.fitting.words import write_plan

EMULATED = "emulated device"
"""What the budget of a program on CPUs is of: bytes of its tensors, counted beside it."""


def prepare(settings: RunSettings, program: Sequence[str]) -> str:
    """Plans, says the plan in one line, and returns the file that hands it to the program's processes.

    Raises:
        ConfigError: there is no budget, or the program is not one of a single process.
        TracingError: the program cannot be traced.
        FitError: nothing fits the budget.
    """
    require("torch", extra="torch")
    _check_alone(os.environ, program)
    budget = settings.fitting.device_memory_bytes
    if budget is None:
        raise ConfigError(
            "`--fit` must know the memory to fit into, and this machine shows no GPU; say it: --device-memory 20GB"
        )
    plan = plan_of(program, budget)
    if not settings.report.quiet:
        say(f"fit: {write_plan(plan)}")
    if not plan.fits and settings.fitting.fit == "auto":
        raise FitError(
            f"`--device-memory` must have room for a step of the program, got too little: {write_plan(plan)}"
        )
    return str(_handed(plan))


def plan_of(program: Sequence[str], budget: int) -> FitPlan:
    """The certified plan of a program of one process."""
    name = program[1] if program[0] == "-m" and len(program) > 1 else program[0]
    traced = trace(program, "cpu")
    plan = plan_fit(
        traced.features, traced.timeline, traced.model, budget, device=EMULATED, name=os.path.basename(name)
    )
    if not plan.changes:
        return plan
    found = trace_plan(program, "cpu", plan)
    peak = max(step_peak(found.timeline).bytes, peak_before(found.timeline).bytes)
    return replace(plan, peak_bytes=peak, lacks_bytes=max(0, peak - budget), certified=True)


def _check_alone(environ: Mapping[str, str], program: Sequence[str]) -> None:
    size = environ.get("WORLD_SIZE", "1")
    if size not in ("", "1"):
        raise ConfigError(f"`--fit` must be of a program of one process, got one of {size} ranks; leave it out")


def _handed(plan: FitPlan) -> Path:
    """A file with the plan, named by its content, for all processes of the program."""
    content = to_json(plan)
    name = f"{sha256(content).hexdigest()[:24]}.json"
    for folder in (default_folder() / "plans", Path(tempfile.gettempdir(), f"stoker-fits-{os.getuid()}")):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            part = folder / f"{name}.{os.getpid()}.part"
            part.write_bytes(content)
            part.replace(folder / name)
        except OSError:  # the next place will do
            continue
        return folder / name
    raise ConfigError(f"`{default_folder()}` must be a folder that can be written; name another by XDG_CACHE_HOME")
