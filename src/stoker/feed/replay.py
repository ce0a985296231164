"""``LOADER:INDEX:SEED``: one sample of a run, named so that it can be made again alone (`stoker run --replay`)."""

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
        """The sample that ``str()`` of it named.

        Raises:
            ConfigError: The text is something else.
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
    """What must start ``stoker`` again where this process is a rank of torchrun; nothing elsewhere.

    One rank will do: the others have no part in a sample, and a program that joins them waits for none.
    """
    if "TORCHELASTIC_RUN_ID" in environ and "LOCAL_RANK" in environ:
        return ("torchrun", "--standalone", "--nproc-per-node", "1", "-m")
    return ()


def replay_command(loader: int, index: object, seed: int, program: Sequence[str], launcher: Sequence[str] = ()) -> str:
    """The shell command that makes a sample again; empty where there is none.

    None is there for an index that can't be written down, or is None (a stream), and for programs that are typed in.

    Args:
        loader: its number.
        index: what the sampler gave.
        seed: what the sample was made with.
        program: the script or ``-m module`` and its arguments; empty where no command starts it.
        launcher: what started ``stoker``, as :func:`launcher_of` says.
    """
    literal = _as_literal(index) if program else None
    if literal is None:
        return ""
    spec = str(Replay(loader=loader, index=literal, seed=seed))
    return shlex.join([*launcher, "stoker", "run", "--replay", spec, *program])


def _as_literal(index: Any) -> Any:
    """The index as a value that its own text gives back; None when there is none."""
    try:
        if ast.literal_eval(repr(index)) == index:
            return index
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    try:
        return operator.index(index)  # NumPy's integers, tensors of one integer
    except Exception:
        return None
