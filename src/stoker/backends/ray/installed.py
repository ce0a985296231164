"""Whether Ray is installed, and new enough; looks without importing it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re

from stoker.core.errors import ConfigError
from stoker.core.extras import require

LEAST_VERSION = (2, 52)
"""The first with authentication by a token."""


def check_installed() -> str:
    """The version of Ray here, which is not imported.

    Raises:
        MissingExtraError: there is none.
        ConfigError: it is too old.
    """
    if importlib.util.find_spec("ray") is None:
        require("ray", extra="ray")
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:  # a folder of that name
        raise ConfigError(
            '`ray` must be the installed package, got another module; pip install "stoker[ray]"'
        ) from None
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise ConfigError(
            f"`ray` must be at least {least}, the first with authentication by a token, got {version}; "
            'pip install -U "stoker[ray]"'
        )
    return version
