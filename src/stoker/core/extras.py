"""Optional packages: imported by name when a feature needs one, with the pip line when it is missing."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from stoker.core.errors import MissingExtraError


def require(module: str, *, extra: str) -> ModuleType:
    """Imports a module for a feature that belongs to an extra of stoker.

    Args:
        module: Name to import, for example ``"pyarrow"`` or ``"google.protobuf"``.
        extra: The extra of stoker that brings it.

    Raises:
        MissingExtraError: The package is not installed. One that is installed but broken raises its own error.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the package is installed; something that it needs is not
        raise _missing(module, extra) from error


def require_in_child(package: str, *, extra: str) -> None:
    """Checks for a package that only processes which this one starts import: torch alone takes more than a second.

    Raises:
        MissingExtraError: It is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise _missing(package, extra)


def _missing(module: str, extra: str) -> MissingExtraError:
    message = f'`{module}` is needed here and not installed; install it with: pip install "stoker[{extra}]"'
    return MissingExtraError(message, module=module, extra=extra)
