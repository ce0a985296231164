"""``LOADER:INDEX:SEED`` names one sample of a run, so that it can be remade alone (`stoker run --replay`)."""

from __future__ import annotations

import ast
import operator
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.core.errors import ConfigError

RULE = "`LOADER:INDEX:SEED` as an error message gave it, such as `0:17:4711`"


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One sample of a run."""

    loader: int
    """Number of the loader in the order of first use."""
    index: Any
    """What the sampler gave: a Python literal."""
    seed: int
    """What the random streams were seeded with."""

    def __str__(self) -> str:
        return f"{self.loader}:{self.index!r}:{self.seed}"

    @classmethod
    def parse(cls, text: str) -> Replay:
        """The sample that a text names: the inverse of ``str()``.

        Raises:
            ConfigError: the text is malformed.
        """
        loader, _, rest = text.partition(":")
        index, _, seed = rest.rpartition(":")
        try:
            found = cls(loader=int(loader), index=ast.literal_eval(index.strip()), seed=int(seed))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
            raise ConfigError(f"`replay` must be {RULE}, got {text!r}", key="replay") from error
        if found.loader < 0 or not 0 <= found.seed < 1 << 63:
            raise ConfigError(f"`replay` must be {RULE}, got {text!r}", key="replay")
        return found


def is_replay(text: object) -> bool:
    """Whether a text names a sample."""
    try:
        Replay.parse(str(text))
    except ConfigError:
        return False
    return True


def launcher_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Command prefix that starts ``stoker`` again: torchrun's if this process is one of its ranks, else empty.

    One rank suffices: the others have no part in a sample, and a process group of one waits for nobody.
    """
    if "TORCHELASTIC_RUN_ID" in environ and "LOCAL_RANK" in environ:
        return ("torchrun", "--standalone", "--nproc-per-node", "1", "-m")
    return ()


def replay_command(loader: int, index: object, seed: int, program: Sequence[str], launcher: Sequence[str] = ()) -> str:
    """The shell command that remakes a sample; empty if there is none.

    There is none for an index that has no literal or is None (a stream), nor for programs typed at a prompt.

    Args:
        loader: the loader's number.
        index: as the sampler gave it.
        seed: of the sample.
        program: the script or ``-m module`` and its arguments; empty if no command starts it.
        launcher: command prefix, from :func:`launcher_of`.
    """
    literal = _as_literal(index) if program else None
    if literal is None:
        return ""
    spec = str(Replay(loader=loader, index=literal, seed=seed))
    return shlex.join([*launcher, "stoker", "run", "--replay", spec, *program])


def _as_literal(index: Any) -> Any:
    """The index as a value that its ``repr`` evaluates to; None if there is none."""
    try:
        if ast.literal_eval(repr(index)) == index:
            return index
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    try:
        return operator.index(index)  # NumPy's integers, tensors of one integer
    except Exception:
        return None
