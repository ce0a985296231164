"""The queue of the cluster that a command joins."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from stoker.backends.ray import joining

if TYPE_CHECKING:
    from stoker.backends.ray.allocator.jobs import Jobs


def joined(*, insecure: bool) -> Jobs:
    """Joins the cluster that RAY_ADDRESS names, else the one that stoker started here.

    Args:
        insecure: whether one without authentication is taken.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: there is none, or it cannot be joined.
        ClusterStartError: the allocator does not answer.
    """
    joining.connect(insecure=insecure)
    # Imported here: Ray finds its variables only then.
    jobs = importlib.import_module("stoker.backends.ray.allocator.jobs")
    return jobs.Jobs()
