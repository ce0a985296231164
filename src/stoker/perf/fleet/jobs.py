"""Many jobs as columns: the table's schema with the rule of each column, and the arrays it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.core.errors import JobTableError
from stoker.perf.equations import LABELS, Architecture, CodeArray, Features, FloatArray

_MOST = 1e30
"""Beyond any step; keeps sums and ratios finite."""
SYNTHETIC_PREFIX = "synthetic-"
"""Prefix of the name of every job that never ran, so that a table of them is recognised when it is read."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table of jobs."""

    name: str
    about: str
    rule: str
    """What a value must be, to complete "must be ..."."""
    accepts: Callable[[FloatArray], NDArray[np.bool_]]
    required: bool = True


def _within(values: FloatArray) -> NDArray[np.bool_]:
    return (values >= 0) & (values <= _MOST)


def _positive(values: FloatArray) -> NDArray[np.bool_]:
    return (values > 0) & (values <= 1e12)


def _count(values: FloatArray) -> NDArray[np.bool_]:
    return (values >= 1) & (values <= 1e6) & (values == np.floor(values))


def _amount(name: str, about: str, *, required: bool = True) -> Column:
    return Column(name=name, about=about, rule=f"a number from 0 to {_MOST:.0e}", accepts=_within, required=required)


NUMBERS = (
    Column(name="num_gpus", about="GPUs of the job", rule="a whole number from 1 to 1,000,000", accepts=_count),
    _amount("flops", "floating-point operations, compute-bound, of a step on one GPU"),
    _amount("memory_bytes", "bytes of GPU memory that memory-bound operations touch, of a step on one GPU"),
    _amount("input_bytes", "bytes of input copied to one GPU for a step"),
    _amount("traffic_bytes", "bytes of weights and gradients that one GPU sends over each link of its path in a step"),
    _amount("dense_weight_bytes", "size of the dense parameters, optimiser slots included", required=False),
    _amount("embedding_weight_bytes", "size of the embedding tables, optimiser slots included", required=False),
    Column(
        name="duration_s",
        about="how long the job ran; with it the GPU level counts GPU-seconds instead of GPUs",
        rule="a positive number up to 1e+12",
        accepts=_positive,
        required=False,
    ),
)
"""Columns that hold numbers, in the order in which they are written."""
ARCHITECTURE = "architecture"
JOB = "job"
REQUIRED = (ARCHITECTURE, *(column.name for column in NUMBERS if column.required))
COLUMN_NAMES = (JOB, ARCHITECTURE, *(column.name for column in NUMBERS))
ARCHITECTURE_RULE = "one of " + ", ".join(LABELS)
ONE_GPU_RULE = "1 for the architecture 1w1g"
STEP_RULE = "at least 1, or memory_bytes or input_bytes: a step that does nothing takes no time"


def read_architecture(text: str) -> int:
    """Number of an architecture's name, in any capitalisation and punctuation; -1 for another word."""
    return _BY_WORD.get("".join(filter(str.isalnum, text.lower())), -1)


_BY_WORD = {"".join(filter(str.isalnum, label.lower())): number for number, label in enumerate(LABELS)}


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Jobs, one to each place of the arrays.

    Fields without a column in the table are None, and the report leaves out what needs them.
    """

    name: str
    form: str
    """How the table was read, for people."""
    groups: tuple[str, ...]
    """Names of the classes."""
    group: CodeArray
    """Class of each job."""
    num_gpus: FloatArray
    names: list[str] | None = None
    duration_s: FloatArray | None = None
    features: Features[FloatArray] | None = None
    weight_bytes: FloatArray | None = None
    """Size of the model; NaN if not known."""
    dense_bytes: FloatArray | None = None
    """Its dense part; NaN if not known."""
    stage_s: Mapping[str, FloatArray] | None = None
    """Measured seconds of a step's stages, which overlap."""
    notes: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the report cannot show, and which columns it would take."""
    synthetic: bool = False

    def __len__(self) -> int:
        """Number of jobs."""
        return len(self.num_gpus)

    @property
    def weight(self) -> FloatArray:
        """What each job counts at GPU level."""
        return self.num_gpus if self.duration_s is None else self.num_gpus * self.duration_s

    def job_name(self, place: int) -> str:
        """Name of a job; its row if the table has no names."""
        return self.names[place] if self.names else f"row {place + 1}"


def fleet_of(
    name: str,
    architecture: CodeArray,
    numbers: Mapping[str, FloatArray],
    names: list[str] | None,
    *,
    form: str = "a table of job features",
) -> Fleet:
    """The fleet of a table's checked columns.

    Args:
        name: of the table.
        architecture: number of each job's.
        numbers: columns by name; optional ones may be absent or hold NaN where a cell is empty.
        names: of the jobs.
        form: how the table was read.
    """
    features = Features(
        architecture=architecture,
        num_gpus=numbers["num_gpus"],
        flops=numbers["flops"],
        memory_bytes=numbers["memory_bytes"],
        input_bytes=numbers["input_bytes"],
        traffic_bytes=numbers["traffic_bytes"],
    )
    duration_s, notes = numbers.get("duration_s"), []
    if duration_s is not None and np.isnan(duration_s).any():
        notes = [f"`duration_s` is empty for {int(np.isnan(duration_s).sum()):,} jobs: the GPU level counts GPUs"]
        duration_s = None
    dense = numbers.get("dense_weight_bytes")
    embedding = numbers.get("embedding_weight_bytes")
    return Fleet(
        name=name,
        form=form,
        groups=LABELS,
        group=architecture,
        num_gpus=features.num_gpus,
        names=names,
        duration_s=duration_s,
        features=features,
        weight_bytes=None if dense is None or embedding is None else dense + embedding,
        dense_bytes=dense,
        notes=tuple(notes),
        synthetic=bool(names) and all(each.startswith(SYNTHETIC_PREFIX) for each in names),
    )


def first_wrong(architecture: CodeArray, numbers: Mapping[str, FloatArray]) -> tuple[int, str, str] | None:
    """Place, column and rule of the first value that breaks one; None if all are right."""
    found: list[tuple[int, str, str]] = []

    def note(wrong: NDArray[np.bool_], column: str, rule: str) -> None:
        if wrong.any():
            found.append((int(np.argmax(wrong)), column, rule))

    note(architecture < 0, ARCHITECTURE, ARCHITECTURE_RULE)
    for column in NUMBERS:
        if (values := numbers.get(column.name)) is not None:
            right = column.accepts(values)
            note(~(right if column.required else right | np.isnan(values)), column.name, column.rule)
    note((architecture == Architecture.ONE_GPU) & (numbers["num_gpus"] != 1), "num_gpus", ONE_GPU_RULE)
    idle = numbers["flops"] + numbers["memory_bytes"] + numbers["input_bytes"] < 1
    note(idle, "flops", STEP_RULE)
    return min(found, key=lambda wrong: wrong[0], default=None)


def refusal(name: str, where: str, column: str, value: Any, rule: str) -> JobTableError:
    """The error for one value of a table."""
    return JobTableError(
        f"`{column}` in {where} of `{name}` must be {rule}, got {value!r}; the columns: stoker perf fleet --schema",
        path=name,
        row=where,
        column=column,
        value=value,
        rule=rule,
    )


def take(features: Features[FloatArray], places: NDArray[np.integer[Any]]) -> Features[FloatArray]:
    """The features of some jobs."""
    codes: Any = features.architecture
    return replace(
        features,
        architecture=codes[places],
        num_gpus=features.num_gpus[places],
        flops=features.flops[places],
        memory_bytes=features.memory_bytes[places],
        input_bytes=features.input_bytes[places],
        traffic_bytes=features.traffic_bytes[places],
    )
