"""What people call a program and its files, including code typed in at a prompt or in the cells of a notebook."""

from __future__ import annotations

import os
import sys
from typing import Any

from stoker.core.texts import escaped


def own_program() -> tuple[str, ...]:
    """This process's script and arguments; empty for code that is typed in, which no command can start."""
    in_notebook = _shell() is not None and not hasattr(sys.modules.get("__main__"), "__file__")
    return () if in_notebook or not any(sys.argv) else tuple(sys.argv)


def file_shown(filename: str) -> str:
    """A source file as people know it: a notebook's cell, a relative path if below this folder, or in full."""
    path = os.path.relpath(filename)
    return _cell_of(filename) or escaped(filename if path.startswith("..") else path)


def _cell_of(filename: str) -> str:
    """A notebook's label for the code of a file that it generated, such as ``In[3]``; empty for all others."""
    describe: Any = getattr(getattr(_shell(), "compile", None), "format_code_name", None)
    label = describe(filename) if describe is not None else None
    return label[1].replace(" ", "") if label is not None and label[0] == "Cell" else ""


def _shell() -> Any:
    """IPython's shell, if this process has one."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
