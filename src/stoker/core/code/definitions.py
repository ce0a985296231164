"""Functions that a user names on the command line: ``package.module:function`` or ``file.py:function``."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stoker.core.errors import ConfigError

_FEW = 12
"""Names that fit in a line."""


def parted(target: str) -> tuple[str, str]:
    """Module (or file) and function of a target.

    Raises:
        ConfigError: it has another form, or names a file that is none.
    """
    module, colon, function = target.rpartition(":")
    if not (module and colon and function.isidentifier()):
        raise ConfigError(f"`{target}` must be module:function or file.py:function")
    if module.endswith(".py") and not Path(module).is_file():
        raise ConfigError(f"`{module}` must be a Python file, and is none")
    return module, function


def load_function(module: str, name: str) -> Callable[..., Any]:
    """A function of a module, imported as python would from the current folder, or of a file.

    What the module raises while it is imported is raised as it is.

    Raises:
        ConfigError: there is no such module or function.
    """
    sys.path.insert(0, os.getcwd())
    if module.endswith(".py"):
        path = os.path.abspath(module)
        sys.path.insert(0, os.path.dirname(path))
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = loaded
        spec.loader.exec_module(loaded)
    elif importlib.util.find_spec(module.partition(".")[0]) is None:
        raise ConfigError(f"`{module}` must be a module that can be imported from here, or a file: {module}.py:{name}")
    else:
        loaded = importlib.import_module(module)
    found = getattr(loaded, name, None)
    if not callable(found):
        known = [key for key, value in vars(loaded).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise ConfigError(f"`{name}` must be a function of `{module}`, {_those_of(known, name)}")
    return found


def _those_of(known: Sequence[str], name: str) -> str:
    """Which functions a module has: all of a few, the closest of many."""
    if len(known) <= _FEW:
        return f"which has {', '.join(known) or 'none'}"
    close = ", ".join(difflib.get_close_matches(name, known, n=3))
    return f"which has {len(known)} functions, {'such as ' + close if close else 'none with such a name'}"
