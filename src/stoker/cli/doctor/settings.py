"""The part of `stoker doctor` that asks what `stoker run` would refuse or could not do here, by its own functions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from stoker.cache.settings import CacheSettings
from stoker.cli.doctor.check import Check
from stoker.core.errors import StokerError
from stoker.core.settings_sources import Resolved
from stoker.run.launch import check_interpreter, require_cache, run_folder
from stoker.run.settings import RunSettings, resolve

_REFUSED = "`stoker run` refuses to start"


def check_settings() -> list[Check]:
    """Whether `stoker run` would start here: interpreter, settings of files and environment, run folder, data cache."""
    interpreter = _refusal("interpreter", check_interpreter, "programs find stoker through it")
    try:
        resolved = resolve()
    except StokerError as error:
        return [interpreter, _refused("settings", error)]
    settings = resolved.settings
    found = [
        interpreter,
        _check_switch(resolved),
        check_run_folder(Path(run_folder(settings.report.run_dir, "run"))),
    ]
    return found if settings.cache.directory == "off" else [*found, _check_cache(settings.cache)]


def _check_switch(resolved: Resolved[RunSettings]) -> Check:
    if not resolved.settings.report.off:
        return Check(name="settings", status="ok", found="of files and environment are as they must be")
    return Check(
        name="settings",
        status="warn",
        found=f"`off` is set by {resolved.origins['off']}",
        consequence="`stoker run` leaves every loader to torch",
        remedy="remove it there; `stoker config show` has all settings",
    )


def check_run_folder(folder: Path) -> Check:
    """Whether the records of a run can be written.

    Args:
        folder: of a run; it and those above it may not be there yet.
    """
    there = next(place for place in (folder, *folder.parents) if place.exists())
    found = f"records go to {folder.parent}"
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return Check(name="run folder", status="ok", found=found)
    why = "may not be written to" if there.is_dir() else "is no folder"
    return Check(
        name="run folder",
        status="warn",
        found=f"{found}, but {there} {why}",
        consequence="a run is served and reported, and leaves no records: no `stoker report` afterwards",
        remedy="stoker run --run-dir DIR train.py, with a folder that can be written to",
    )


def _check_cache(settings: CacheSettings) -> Check:
    def ask() -> None:
        require_cache()
        # Imported here: it needs the packages of an extra.
        from stoker.run.caching import session

        session.usable(settings)

    where = "the user's own directory" if settings.directory == "on" else settings.directory
    return _refusal("cache", ask, f"reads go through {where}")


def _refusal(name: str, ask: Callable[[], object], found: str) -> Check:
    try:
        ask()
    except StokerError as error:
        return _refused(name, error)
    return Check(name=name, status="ok", found=found)


def _refused(name: str, error: StokerError) -> Check:
    """A check that failed with an error of `stoker run`; its text has the remedy after the last semicolon."""
    rule, _, remedy = str(error.args[0]).rpartition("; ")
    return Check(
        name=name,
        status="fail",
        found=f"{rule or remedy} [{error.code}]",
        consequence=_REFUSED,
        remedy=remedy if rule else "correct it; `stoker config show` lists settings and their origins",
    )
