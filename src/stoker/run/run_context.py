"""The run of a served process: written by the launcher, read by the hook, passed to the session."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

from msgspec.structs import replace

from stoker import __version__
from stoker.core.errors import ConfigError
from stoker.core.settings import Handed
from stoker.run.environment import ACTIVE_ENV
from stoker.run.settings import RunSettings


class Active(Handed, frozen=True, kw_only=True):
    """The run that this process belongs to."""

    settings: RunSettings
    """Settings of the run, already merged from the command line, the environment and files."""
    run_dir: str
    """Absolute path of the run folder; made by the first training process that writes to it. All ranks share it."""
    run_id: str = ""
    """The same for all processes of this `stoker run` and for no other; empty stands for the folder's name."""
    argv: tuple[str, ...] = ()
    """``sys.argv`` of this process: the program and its arguments, without stoker's own."""
    program: tuple[str, ...] = ()
    """What the user asked python to run: a script or ``-m module``, and arguments; the same in child interpreters."""
    launcher: tuple[str, ...] = ()
    """What must start `stoker run` for this program; torchrun where it was started as one of its ranks."""
    pid: int = 0
    """Process that `stoker run` became: the program's own, unlike those that it starts; 0 where that is not known."""
    explain_to: str = ""
    """File for an explanation of the loaders: written at the first ``iter(loader)``, where the process then ends."""
    profile: str = ""
    """Options of `stoker profile` as JSON, where the program is measured rather than served."""
    fit_plan: str = ""
    """File with the plan that makes the program fit; empty without one."""
    sizes: str = ""
    """A :class:`~stoker.run.elastic.told.RankSizes` as JSON, where stoker starts the program's ranks."""

    stoker: str = __version__
    """Which version of stoker this is of: another one may mean other things by the same names."""

    def to_environment(self) -> str:
        """Returns the value of ``STOKER_ACTIVE`` that carries this run to the program and its children."""
        return replace(self, argv=()).to_json()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Active:
        """Reads ``STOKER_ACTIVE``.

        Raises:
            ConfigError: it is malformed, or another version of stoker wrote it.
        """
        text = environ.get(ACTIVE_ENV, "")
        try:
            version = json.loads(text)["stoker"]
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"`{ACTIVE_ENV}` must hold what `stoker run` wrote, got {text[:80]!r}") from error
        if version != __version__:
            raise ConfigError(
                f"`stoker` must be {version} as in the process that started this one, got {__version__} in {sys.prefix}"
            )
        return replace(cls.from_json(text), argv=tuple(sys.argv))
