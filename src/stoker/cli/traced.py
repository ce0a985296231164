"""The program that a command characterises: a script, a module, a definition, or features that were found before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import msgspec

from stoker.core.errors import ConfigError, TracingError
from stoker.core.extras import require_in_child
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.records import StepFeatures, parse_hints
from stoker.perf.planning.batches import Batches
from stoker.perf.planning.memory import PlannedMemory
from stoker.records.fitting import TracedModel
from stoker.run.fitting.devices import FitDevice
from stoker.run.fitting.pricing import on_device, seconds_of

ABOUT_PROGRAM = """\
PROGRAM is a script, run up to its second optimizer step without a GPU; or module:function (file.py:function), which
returns what stoker.perf.characterise takes; or features that were found before (features.json)."""


def batches_of(
    program: str, module: str | None, theirs: Sequence[str], hints: Sequence[str], command: str, target: str = "cuda"
) -> Batches:
    """The program's step, at one size of its batch or two.

    Args:
        program: script, definition or features; empty for a module.
        module: that runs as ``python -m``.
        theirs: the program's own arguments.
        hints: as of ``stoker perf features``.
        command: for messages.
        target: whose kernels are counted.

    Raises:
        ConfigError: not one program is named, or a file or a hint is wrong.
        TracingError: the program cannot be characterised.
    """
    if bool(program) == bool(module):
        raise ConfigError(f"`PROGRAM` or `-m MODULE` must be given, and not both; see `{command} --help`")
    if program.endswith(".json"):
        return Batches(_read_features(Path(program)))
    require_in_child("torch", extra="torch")
    # Imported here: help must not wait for them.
    from stoker.perf.features.definition import characterise_definition
    from stoker.perf.features.program import characterise_program

    try:
        known = parse_hints(hints)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if ":" in program and not Path(program).exists():
        if target != "cuda":
            raise ConfigError(f"`{program}` is traced for GPUs alone; name a script or -m MODULE, or leave out `--cpu`")
        defined = characterise_definition(program, hints=known)
        return Batches(*defined.traced, own=defined.batch_size)
    started = ["-m", module] if module else [program]
    return Batches(characterise_program([*started, *theirs], target=target, hints=known))


def planned_of(
    program: str, module: str | None, theirs: Sequence[str], hints: Sequence[str], command: str,
    precision: str | None = None,
) -> tuple[Batches, PlannedMemory]:  # fmt: skip
    """The program's step and the memory of what spreads it: by its timeline, where it is a whole program.

    Args:
        program: as of :func:`batches_of`, and so are all but the last; errors as well.
        module: as there.
        theirs: as there.
        hints: as there.
        command: as there.
        precision: of products; by default that of the program.
    """
    is_program = bool(module) or not (program.endswith(".json") or (":" in program and not Path(program).exists()))
    if bool(program) == bool(module) or not is_program:
        return batches_of(program, module, theirs, hints, command), PlannedMemory(precision)
    require_in_child("torch", extra="torch")
    from stoker.perf.features.records import parse_hints
    from stoker.run.fitting.tracing import look

    try:
        known = parse_hints(hints)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    found, model = look([*(["-m", module] if module else [program]), *theirs], "cuda", hints=known)
    timeline = seconds_of(found.features, found.timeline, FitDevice(name="", budget=0, target="cuda"))
    return Batches(found.features), PlannedMemory(precision, (found.features, timeline), model)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTraces:
    """A program's step and its memory, and how to have them for other batches.

    Attributes:
        features: of the step.
        timeline: of its memory.
        model: what may be done to the program's model.
        program: its command line; empty for a definition.
        evaluation: of the program's first evaluation; None if none was seen.
        evaluates: whether the program was let go on to one.
        larger: of the step with twice the batch; None if it was not wanted or could not be traced.
        sized: traces the step with another batch; None where the size does not follow from the program's loaders.
    """

    features: StepFeatures
    timeline: MemoryTimeline
    model: TracedModel = field(default_factory=TracedModel)
    program: tuple[str, ...] = ()
    evaluation: MemoryTimeline | None = None
    evaluates: bool = False
    larger: MemoryTimeline | None = None
    sized: Callable[[int], MemoryTimeline | None] = lambda _: None

    def on(self, device: FitDevice) -> MemoryTraces:
        """The same with what libraries and kernels take on a GPU."""

        def sized(size: int) -> MemoryTimeline | None:
            return there(self.sized(size))

        def there(timeline: MemoryTimeline | None) -> MemoryTimeline | None:
            return None if timeline is None else on_device(timeline, device)

        return replace(
            self, timeline=on_device(self.timeline, device), evaluation=there(self.evaluation),
            larger=there(self.larger), sized=sized,
        )  # fmt: skip


def memory_of(
    program: str, module: str | None, theirs: Sequence[str], hints: Sequence[str], *, sized: bool, target: str = "cuda"
) -> MemoryTraces:
    """The program's step and its memory; arguments and errors as of :func:`batches_of`.

    Args:
        program: as above.
        module: as above.
        theirs: as above.
        hints: as above.
        sized: whether the step with a batch of twice the size is wanted too. It is left out where the size does not
            follow from the program's loaders, or a step of it cannot be traced.
        target: whose kernels run.
    """
    if bool(program) == bool(module):
        raise ConfigError("`PROGRAM` or `-m MODULE` must be given, and not both; see `stoker memory --help`")
    require_in_child("torch", extra="torch")
    # Imported here: help must not wait for them.
    from stoker.perf.features.definition import trace_definition
    from stoker.perf.features.program import trace_program
    from stoker.run.fitting.tracing import look, unseen

    try:
        known = parse_hints(hints)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if ":" in program and not Path(program).exists():
        if target != "cuda":
            raise ConfigError(f"`{program}` is traced for GPUs alone; name a script or -m MODULE, or leave out `--cpu`")
        (features, timeline), *others = trace_definition(program, hints=known)
        return MemoryTraces(
            features=features, timeline=timeline, larger=others[0][1] if others else None,
            sized=_kept(lambda size: trace_definition(program, hints=known, sizes=(size,))[0][1]),
        )  # fmt: skip
    started = [*(["-m", module] if module else [program]), *theirs]
    first, model = look(started, target, hints=known, evaluates=True)
    own = first.timeline.batch_size

    def again(size: int) -> MemoryTimeline:
        with unseen():
            return trace_program(started, target=target, hints=known, batch_times=size / own)[1]

    traced = _kept(again)
    larger = traced(2 * own) if sized else None
    return MemoryTraces(
        features=first.features, timeline=first.timeline, model=model, program=tuple(started),
        evaluation=first.evaluation, evaluates=True,
        larger=larger if larger is not None and larger.batch_size > own else None, sized=traced,
    )  # fmt: skip


def _kept(trace: Callable[[int], MemoryTimeline]) -> Callable[[int], MemoryTimeline | None]:
    """A trace by size, each made once; None where the program cannot be traced."""

    @cache
    def found(size: int) -> MemoryTimeline | None:
        try:
            return trace(size)
        except TracingError:
            return None

    return found


def _read_features(path: Path) -> StepFeatures:
    try:
        return StepFeatures.from_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"`{path}` must be a file that can be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"`{path}` must be what `stoker perf features --json` writes: {error}") from None
