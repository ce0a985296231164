"""Optional packages: imported by name when a feature needs one, with the pip line when it is missing."""

from __future__ import annotations

import importlib
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
        message = f'`{module}` is needed here and not installed; install it with: pip install "stoker[{extra}]"'
        raise MissingExtraError(message, module=module, extra=extra) from error
