"""The settings of a run: those of each capability, composed in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from stoker.backends.remote.settings import RemoteSettings
from stoker.cache.settings import CacheSettings
from stoker.core import settings_sources
from stoker.core.settings import Settings, count, keys_of, path, switch
from stoker.core.settings_sources import Resolved
from stoker.feed.settings import FaultSettings, FeedSettings
from stoker.graph.settings import CutSettings
from stoker.records.versus import LEAST_BATCHES, MIN_PAIRS
from stoker.scale.settings import ScaleSettings
from stoker.scale.size_settings import SizeSettings
from stoker.train.settings import ExchangeSettings, FitSettings

_VERSUS = "alternate with torch's own workers over the first N batches, and report which is faster"
_VERSUS_RULE = f"a whole number of batches of at least {LEAST_BATCHES}, for {MIN_PAIRS} pairs of rounds that count"


class ReportSettings(Settings, frozen=True, kw_only=True):
    """Whether a program runs under stoker, and what is printed and recorded about its run."""

    variables = ("STOKER_ACTIVE", "STOKER_DATA_WORKER", "STOKER_RUN_DIR", "STOKER_RUN_ID", "STOKER_SETTINGS")
    """Through these, stoker's own processes talk to each other.

    So ``run-dir`` has no variable: ``STOKER_RUN_DIR`` carries the folder of the run at hand to its child processes.
    """

    versus_plain: Annotated[int | None, count("N", _VERSUS, least=LEAST_BATCHES, rule=_VERSUS_RULE)] = None
    # The other variable is the word that people look for when something goes wrong under a scheduler.
    off: Annotated[bool, switch("run the program without stoker", also="STOKER_DISABLE")] = False
    quiet: Annotated[bool, switch("print nothing but errors")] = False
    run_dir: Annotated[
        str | None, path("DIR", "folder for the records of the run (default: a new one under stoker-runs)")
    ] = None


class RunSettings(Settings, frozen=True, kw_only=True):
    """The settings of a run.

    Raises:
        ConfigError: At construction, for a value that breaks its key's rule.
    """

    scale: ScaleSettings = ScaleSettings()
    feed: FeedSettings = FeedSettings()
    cut: CutSettings = CutSettings()
    cache: CacheSettings = CacheSettings()
    report: ReportSettings = ReportSettings()
    faults: FaultSettings = FaultSettings()
    remote: RemoteSettings = RemoteSettings()
    sizes: SizeSettings = SizeSettings()
    exchange: ExchangeSettings = ExchangeSettings()
    fitting: FitSettings = FitSettings()


KEYS = keys_of(RunSettings)
"""Every setting, in the order in which it is shown."""


def resolve(
    command_line: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Resolved[RunSettings]:
    """The settings of a run after all sources are merged, as :func:`stoker.core.settings_sources.resolve` does it.

    Raises:
        ConfigError: A key is unknown, a value breaks its rule, or a file is not TOML.
    """
    return settings_sources.resolve(RunSettings, command_line, environ=environ, cwd=cwd)
