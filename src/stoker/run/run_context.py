"""What a served process knows about its run: written by the launcher, read by the hook, handed to the session."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from stoker import __version__
from stoker.core.config import Settings
from stoker.core.errors import ConfigError
from stoker.run.environment import ACTIVE_ENV


@dataclass(frozen=True, kw_only=True)
class Active:
    """The run that this process belongs to."""

    settings: Settings
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

    def to_environment(self) -> str:
        """Returns the value of ``STOKER_ACTIVE`` that carries this run to the program and its children."""
        settings = json.loads(self.settings.to_json())
        fields = {"stoker": __version__, "run_dir": self.run_dir, "settings": settings, "program": self.program}
        if self.run_id:
            fields["run_id"] = self.run_id
        if self.launcher:
            fields["launcher"] = self.launcher
        if self.pid:
            fields["pid"] = self.pid
        if self.explain_to:
            fields["explain_to"] = self.explain_to
        if self.profile:
            fields["profile"] = self.profile
        return json.dumps(fields)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Active:
        """Reads ``STOKER_ACTIVE``.

        Raises:
            ConfigError: it is malformed, or another version of stoker wrote it.
        """
        text = environ.get(ACTIVE_ENV, "")
        try:
            fields = json.loads(text)
            version, run_dir, settings = fields["stoker"], fields["run_dir"], json.dumps(fields["settings"])
            program, explain_to = tuple(fields.get("program", ())), fields.get("explain_to", "")
            run_id, launcher = fields.get("run_id", ""), tuple(fields.get("launcher", ()))
            pid, profile = int(fields.get("pid", 0)), fields.get("profile", "")
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"`{ACTIVE_ENV}` must hold what `stoker run` wrote, got {text[:80]!r}") from error
        if version != __version__:
            raise ConfigError(
                f"`stoker` must be {version} as in the process that started this one, got {__version__} in {sys.prefix}"
            )
        return cls(
            settings=Settings.from_json(settings),
            run_dir=run_dir,
            run_id=run_id,
            argv=tuple(sys.argv),
            program=program,
            launcher=launcher,
            pid=pid,
            explain_to=explain_to,
            profile=profile,
        )
