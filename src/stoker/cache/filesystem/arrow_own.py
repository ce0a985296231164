# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""Filesystems of pyarrow that a program makes itself: S3 through the cache where its options allow it, others named.

Options are those of pyarrow's constructors, which this module puts into the words of fsspec.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.fs as pafs

from stoker.cache.filesystem.unrouted import note_made

CLASSES: dict[str, Any] = {
    name: vars(pafs)[name]
    for name in ("S3FileSystem", "GcsFileSystem", "AzureFileSystem", "HadoopFileSystem")
    if name in vars(pafs)  # some builds of pyarrow lack some
}
"""pyarrow's own, by name."""

_PyFileSystem: Any = pafs.PyFileSystem
_S3_OPTIONS = frozenset({"access_key", "secret_key", "session_token", "region", "endpoint_override", "scheme"})


def s3_options(found: dict[str, Any]) -> dict[str, Any] | None:
    """Options of ``s3fs`` that mean the same; None where one has no equal there.

    Args:
        found: options of ``pyarrow.fs.S3FileSystem``, None or not there for its defaults.
    """
    given = {name: value for name, value in found.items() if value is not None}
    is_anonymous = given.pop("anonymous", False)
    if given.keys() - _S3_OPTIONS:
        return None
    options: dict[str, Any] = {"anon": True} if is_anonymous else {}
    if endpoint := given.get("endpoint_override"):
        options["endpoint_url"] = endpoint if "://" in endpoint else f"{given.get('scheme', 'https')}://{endpoint}"
    if region := given.get("region"):
        options["client_kwargs"] = {"region_name": region}
    names = {"key": "access_key", "secret": "secret_key", "token": "session_token"}
    return options | {name: given[other] for name, other in names.items() if given.get(other)}


class RoutedS3(_PyFileSystem):
    """Stands for an ``S3FileSystem`` of the program.

    Args:
        handler: reads its objects.
        options: that the program gave.
    """

    def __init__(self, handler: Any, options: dict[str, Any]) -> None:
        super().__init__(handler)
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        return RoutedS3, (self.handler, self._options)

    @property
    def region(self) -> str:
        """The class as pyarrow finds it."""
        return CLASSES["S3FileSystem"](**self._options).region


def front(name: str, route: Callable[[dict[str, Any]], Any], from_uri: Any) -> Any:
    """A class in place of pyarrow's own of a name.

    Args:
        name: of the class.
        route: makes a filesystem that reads through the cache of the program's options, or None.
        from_uri: in place of the class's own.
    """
    own = CLASSES[name]
    own_type: Any = type(own)

    class Front(own_type):
        def __call__(self, *args: Any, **options: Any) -> Any:
            # Only S3 takes its first argument by position.
            given = {**dict(zip(("access_key",), args, strict=False)), **options}
            routed = route(given) if self is made_class and len(args) < 2 else None
            if routed is not None:
                return routed
            note_made(f"pyarrow.fs.{name}", "its own C++ client")
            return own(*args, **options) if self is made_class else super().__call__(*args, **options)

        def __instancecheck__(self, instance: object) -> bool:
            if self is not made_class:
                return super().__instancecheck__(instance)
            return isinstance(instance, own) or (name == "S3FileSystem" and isinstance(instance, RoutedS3))

        def __subclasscheck__(self, subclass: type) -> bool:
            return issubclass(subclass, own) if self is made_class else super().__subclasscheck__(subclass)

    body = {"__doc__": own.__doc__, "__module__": own.__module__, "from_uri": staticmethod(from_uri)}
    made_class: Any = Front(name, (own,), body)
    return made_class
