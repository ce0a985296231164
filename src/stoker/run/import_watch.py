"""Waits in an interpreter until the program imports certain modules, without importing anything of them itself.

Kept to modules that a bare interpreter has loaded anyway, because each child interpreter pays for this import.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, FunctionType, ModuleType
    from typing import Any


class ImportWatch:
    """First on ``sys.meta_path``: lets the others find the targets, and watches their execution."""

    def __init__(self, names: Sequence[str], executed: Callable[[str], None]) -> None:
        """Watches nothing yet.

        Args:
            names: of the modules.
            executed: called with the name of each module after its execution, before its importer continues.
        """
        self._names, self._executed = names, executed

    def insert(self) -> None:
        """Watches from now on."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Watches nothing more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec that plain python would get, its loader watched; None for all other modules."""
        if name not in self._names:
            return None
        for finder in sys.meta_path[_position(self) + 1 :]:
            find = getattr(finder, "find_spec", None)  # very old finders have another interface
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                self._watch(spec)
                return spec
        return None

    def _watch(self, spec: ModuleSpec) -> None:
        """Makes the loader's next execution of this module end in the call.

        The loader object stays the one of plain python, so that ``__spec__`` and ``__loader__`` do; only this one
        instance is changed, and only until it executes.
        """
        loader: Any = spec.loader
        executed = self._executed
        try:
            execute = loader.exec_module
            if isinstance(loader, type) or "exec_module" in vars(loader):
                return  # a class is shared by all its modules; a watched instance needs no second watch
        except (AttributeError, TypeError):
            return

        # Imported here: most interpreters never come here.
        from stoker.core.patching import Patches

        patches = Patches("waits for an import")

        def exec_module(module: ModuleType) -> None:
            if module.__name__ == spec.name:
                patches.restore()
            execute(module)
            if module.__name__ == spec.name:
                executed(spec.name)

        patches.set(loader, "exec_module", _as_import_machinery(exec_module))


def is_complete(name: str) -> bool:
    """Whether a module is imported, and not just being so."""
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def _as_import_machinery(function: Any) -> Any:
    """Gives a function the file name whose frames python leaves out of tracebacks and warnings of failed imports."""
    wrapped: FunctionType = function
    code: CodeType = wrapped.__code__
    wrapped.__code__ = code.replace(co_filename="<frozen importlib._bootstrap_external>")
    return wrapped


def _position(finder: object) -> int:
    return next((at for at, other in enumerate(sys.meta_path) if other is finder), -1)
