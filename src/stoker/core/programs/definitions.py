"""Functions of the user by name: ``module:function`` or ``file.py:function``, imported as a program would be."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class DefinitionError(ValueError):
    """A name does not lead to a function."""


def load_function(module: str, name: str) -> Callable[..., Any]:
    """The function; its module runs, with the folder of a file in front of the path.

    Args:
        module: that can be imported from here, or a file ``….py``.
        name: of the function.

    Raises:
        DefinitionError: there is no such module or function. What the module itself raises is not caught.
    """
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
        raise DefinitionError(
            f"`{module}` must be a module that can be imported from here, or a file: {module}.py:{name}"
        )
    else:
        loaded = importlib.import_module(module)
    found = getattr(loaded, name, None)
    if not callable(found):
        known = [key for key, value in vars(loaded).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise DefinitionError(f"`{name}` must be a function of `{module}`, which has {', '.join(known) or 'none'}")
    return found
