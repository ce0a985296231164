# pyright: reportIncompatibleMethodOverride=false, reportMissingTypeStubs=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""The cache as an fsspec filesystem: ``stoker://s3/bucket/key``, ``stoker::s3://bucket/key``, or with a target.

Reads go through the cache; listings and writes go to the store, and a write evicts the cached pages of its path. It is
synchronous: an asynchronous class costs tens of microseconds a call before any work, more than a hit takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any, ClassVar, cast

from fsspec.compression import compr
from fsspec.core import get_compression
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.utils import stringify_path

from stoker.cache.filesystem.bulk import cat_many, cat_ranges, copy_out, get_many
from stoker.cache.filesystem.files import CachedFile
from stoker.cache.filesystem.options import check_options
from stoker.cache.filesystem.writing import SpooledWrite, WritingCompressed, WritingFile, WritingText
from stoker.cache.page_stores import page_store, settled
from stoker.cache.reading.reader import Reader
from stoker.cache.settings import ARGUMENTS, CacheSettings
from stoker.cache.sources.fsspec_registry import filesystem_class
from stoker.cache.sources.opening import SourceHolder, SourceSpec

_SCHEME = "stoker://"
_CHAIN = "stoker::"
_LISTING_OPTIONS = ("use_listings_cache", "listings_expiry_time", "max_paths")


class StokerFileSystem(ChainedFileSystem):
    """Any fsspec filesystem, read through a cache on local disk that all processes of the user share."""

    protocol: ClassVar[str] = "stoker"
    _strip_tokenize_options = ("fo",)

    def __init__(
        self,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        fo: str | None = None,
        cache_settings: CacheSettings | None = None,
        **options: Any,
    ) -> None:
        """Describes the target; it is built when a read misses.

        Args:
            target_protocol: of the store's filesystem.
            target_options: for its constructor.
            fo: path that a chained URL names; not needed.
            cache_settings: of the cache, as a whole.
            options: fields of :class:`stoker.cache.settings.CacheSettings` and of its cluster, ``directory``,
                ``limit_bytes``, ``rules``, ``join`` and so on; and more of ``target_options``, so that URLs with
                options work as they do without the cache.

        Raises:
            ValueError: there is no target, or an option of the cache breaks its rule.
            TypeError: neither the cache nor the target knows an option.
            ConfigError: the cluster is named wrongly, or its secret cannot be used.
        """
        del fo
        super().__init__(**{name: options.pop(name) for name in _LISTING_OPTIONS if name in options})
        if not target_protocol:
            raise ValueError(
                "`target_protocol` must name the filesystem to read through the cache, got nothing; "
                "give it, or write `stoker://s3/bucket/key`"
            )
        self.target_class: Any = filesystem_class(target_protocol)
        chosen = {name: options.pop(name) for name in ARGUMENTS if name in options}
        check_options(options, ("target_protocol", "target_options", "fo", *ARGUMENTS), self.target_class)
        settings = settled((cache_settings or CacheSettings()).with_arguments(chosen))
        self.spec = SourceSpec(target_protocol, {**(target_options or {}), **options})
        self.pages = page_store(settings)
        peers = None
        if settings.cluster.join:
            # Imported here: it takes a quarter of the cache's import time, and most programs join no cluster.
            from stoker.cache.peer_clients import peer_client

            peers = peer_client(settings)
            peers.tell_refusals()
        self.reader = Reader(self.pages, SourceHolder(self.spec), settings.all_rules, peers=peers)
        self.root_marker = self.target_class.root_marker
        # Class methods of fsspec; here they depend on the instance's target.
        self._strip_protocol = self._strip
        self._parent = self.target_class._parent

    @property
    def target(self) -> Any:
        """The store's own filesystem, of this process and this cache alone."""
        return self.reader.holder.get().target

    @property
    def fsid(self) -> str:
        """The cached store's namespace."""
        return f"stoker-{self.spec.namespace}"

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        if not path.startswith(_SCHEME) or len(path) == len(_SCHEME):
            return {}
        return {"target_protocol": path.removeprefix(_SCHEME).partition("/")[0]}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in cast("list[Any]", path)]
        path = stringify_path(path)
        if not path.startswith(_SCHEME):
            return path.removeprefix(_CHAIN).rstrip("/")
        protocol, _, _ = path.removeprefix(_SCHEME).partition("/")
        return filesystem_class(protocol)._strip_protocol(_target_url(path)) if protocol else ""

    def _strip(self, path: Any) -> Any:
        if isinstance(path, list):
            return [self._strip(each) for each in cast("list[Any]", path)]
        path = stringify_path(path)
        if path.startswith("stoker:"):
            path = _target_url(path) if path.startswith(_SCHEME) else path.removeprefix(_CHAIN)
        return self.target_class._strip_protocol(path)

    def unstrip_protocol(self, name: str) -> str:
        """The path as a URL of this filesystem."""
        path = self._strip(name)
        protocol = self.spec.protocol
        return f"{_SCHEME}{protocol}/{path.removeprefix(f'{protocol}://').lstrip('/')}"

    # Reading

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Bytes of a file; negative positions count from its end."""
        if kwargs:  # a version, say: only the store's own filesystem knows their meaning
            return self.target.cat_file(self._strip(path), start=start, end=end, **kwargs)
        return self.reader.read(self._strip(path), start, end)

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any:
        """Contents of files; several are read in parallel."""
        kwargs.pop("batch_size", None)
        if kwargs:
            return self.target.cat(self._strip(path), recursive=recursive, on_error=on_error, **kwargs)
        paths = self.expand_path(path, recursive=recursive)
        if len(paths) == 1 and not isinstance(path, list) and paths[0] == self._strip(path):
            return self.cat_file(paths[0])
        return cat_many(self.reader, paths, on_error)

    def cat_ranges(
        self, paths: Any, starts: Any, ends: Any, max_gap: int | None = None, on_error: str = "return", **kwargs: Any
    ) -> list[Any]:
        """Ranges of files; those of one file are fetched together, files in parallel."""
        if not isinstance(paths, list):
            raise TypeError(f"`paths` must be a list, got {type(paths).__name__}")
        paths = cast("list[Any]", paths)
        if max_gap is not None:
            raise NotImplementedError("`max_gap` is not needed: missing pages are fetched together")
        kwargs.pop("batch_size", None)
        if kwargs:
            return self.target.cat_ranges(self._strip(paths), starts, ends, on_error=on_error, **kwargs)
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        if not len(starts) == len(ends) == len(paths):
            raise ValueError(f"`starts` and `ends` must be as many as `paths` ({len(paths)})")
        return cat_ranges(self.reader, [self._strip(path) for path in paths], starts, ends, on_error)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """The store's metadata of a path, as fresh as the path's rule requires."""
        path = self._strip(path)
        _, rule = self.reader.rules.of(path)
        if kwargs or not rule.cached:
            return self.target.info(path, **kwargs)
        details = self.reader.snapshot(path).details
        return dict(details) if details is not None else self.target.info(path)

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is such a path."""
        path = self._strip(path)
        return (not kwargs and self.reader.is_known(path)) or bool(self.target.exists(path, **kwargs))

    def isfile(self, path: str) -> bool:
        """Whether there is such a file."""
        path = self._strip(path)
        return self.reader.is_known(path) or bool(self.target.isfile(path))

    def isdir(self, path: str) -> bool:
        """Whether there is such a directory."""
        path = self._strip(path)
        return not self.reader.is_known(path) and bool(self.target.isdir(path))

    def get(self, rpath: Any, lpath: Any, recursive: bool = False, callback: Any = None, **kwargs: Any) -> None:
        """Copies files to the local disk, in parallel."""
        get_many(self, rpath, lpath, callback, recursive=recursive, **kwargs)

    def get_file(self, rpath: str, lpath: Any, callback: Any = None, outfile: Any = None, **kwargs: Any) -> None:
        """Copies a file, or makes a directory, on the local disk."""
        copy_out(self, self._strip(rpath), lpath, callback, outfile)

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: Any = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Opens a file; one that is written is completed only if no exception leaves its ``with``."""
        if mode == "rb" and not compression:
            return self._open(self._strip(path), mode, block_size, cache_options=cache_options, **kwargs)
        if "r" in mode and "+" not in mode:
            return super().open(path, mode, block_size, cache_options, compression, **kwargs)
        if "b" not in mode:
            text = {name: kwargs.pop(name) for name in ("encoding", "errors", "newline") if name in kwargs}
            binary = f"{mode.replace('t', '')}b"
            return WritingText(self.open(path, binary, block_size, cache_options, compression, **kwargs), **text)
        file: Any = super().open(path, mode, block_size, cache_options, None, **kwargs)
        kind = get_compression(self._strip(path), compression)
        return WritingCompressed(compr[kind](file, mode=mode[0]), file) if kind else file

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        if mode != "rb":
            return self._open_writing(path, mode, block_size, autocommit, kwargs)
        _, rule = self.reader.rules.of(path)
        if not rule.cached or kwargs.keys() & {"version_id", "generation"}:
            return self.target.open(path, mode, block_size=block_size, cache_options=cache_options, **kwargs)
        snapshot = self.reader.snapshot(path)
        if not snapshot.is_file:
            return self.target.open(path, mode)  # raises as the store's filesystem does for a directory
        return CachedFile(self, self.reader, snapshot)

    def _open_writing(
        self, path: str, mode: str, block_size: int | None, autocommit: bool, options: dict[str, Any]
    ) -> WritingFile:
        def wrote() -> None:
            self._wrote(path)

        self._must_be_new(path, mode)
        wrote()
        options.pop("cache_type", None)
        if self.spec.protocol == "memory" and "w" in mode:
            # Its files are visible as soon as they are opened.
            spooled = SpooledWrite(lambda data: self.target.pipe_file(path, data), autocommit=autocommit)
            return WritingFile(spooled, path, mode, wrote)
        is_local = self.spec.protocol in ("file", "local")
        late = is_local and "w" in mode
        file = self.target.open(path, mode, block_size=block_size, autocommit=autocommit and not late, **options)
        return WritingFile(file, path, mode, wrote, must_commit=late and autocommit)

    # Listing: the store's own, never from a cache

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        """What is directly below a path."""
        return self.target.ls(self._strip(path), detail=detail, **kwargs)

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        """Files below a path."""
        return self.target.find(self._strip(path), maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)

    def walk(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """Directories below a path, as ``os.walk`` gives them."""
        return self.target.walk(self._strip(path), *args, **kwargs)

    def glob(self, path: str, maxdepth: int | None = None, **kwargs: Any) -> Any:
        """Paths that match a pattern."""
        # Whether a path ends with a slash matters to patterns; stripping takes the slash away.
        stripped = self._strip(path) + ("/" if str(path).endswith("/") else "")
        return self.target.glob(stripped, maxdepth=maxdepth, **kwargs)

    def du(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """Bytes below a path."""
        return self.target.du(self._strip(path), *args, **kwargs)

    def checksum(self, path: str) -> Any:
        """A number that differs when the object does, as the store's filesystem has it now."""
        return self.target.checksum(self._strip(path))

    def ukey(self, path: str) -> Any:
        """A text that differs when the object does, as the store's filesystem has it now."""
        return self.target.ukey(self._strip(path))

    def created(self, path: str) -> Any:
        """When the object was created."""
        return self.target.created(self._strip(path))

    def modified(self, path: str) -> Any:
        """When the object was last changed."""
        return self.target.modified(self._strip(path))

    def sign(self, path: str, expiration: int = 100, **kwargs: Any) -> str:
        """A URL by which others can read the object; they read it from the store."""
        return self.target.sign(self._strip(path), expiration=expiration, **kwargs)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Makes the next read at or below the path ask the store again."""
        super().invalidate_cache(path)
        self.reader.wrote_below("" if path is None else self._strip(path))

    # Writing: passed through; written bytes are not cached

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Writes an object."""
        path = self._strip(path)
        self._must_be_new(path, "xb" if mode == "create" else "wb")
        with self._writing(path):
            self.target.pipe_file(path, value, mode=mode, **kwargs)

    def pipe(self, path: Any, value: bytes | None = None, **kwargs: Any) -> None:
        """Writes objects."""
        values = path if isinstance(path, dict) else {path: value}
        values = {self._strip(each): data for each, data in values.items()}
        with self._writing(*values):
            self.target.pipe(values, **kwargs)

    def put_file(self, lpath: Any, rpath: str, callback: Any = None, **kwargs: Any) -> None:
        """Writes an object from a local file."""
        rpath = self._strip(rpath)
        with self._writing(rpath):
            self.target.put_file(lpath, rpath, **_given(callback=callback), **kwargs)

    def put(self, lpath: Any, rpath: Any, recursive: bool = False, callback: Any = None, **kwargs: Any) -> None:
        """Writes objects from local files."""
        with self._writing_below(rpath):
            self.target.put(lpath, self._kept_slash(rpath), recursive=recursive, **_given(callback=callback), **kwargs)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Writes an empty object, or a new time."""
        path = self._strip(path)
        with self._writing(path):
            self.target.touch(path, truncate=truncate, **kwargs)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copies an object in the store."""
        path1, path2 = self._strip(path1), self._strip(path2)
        with self._writing(path2):
            self.target.cp_file(path1, path2, **kwargs)

    def copy(self, path1: Any, path2: Any, recursive: bool = False, **kwargs: Any) -> None:
        """Copies objects in the store."""
        with self._writing_below(path2):
            self.target.copy(self._kept_slash(path1), self._kept_slash(path2), recursive=recursive, **kwargs)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Moves objects in the store."""
        with self._writing_below(path1), self._writing_below(path2):
            kwargs.update(_given(maxdepth=maxdepth))
            self.target.mv(self._kept_slash(path1), self._kept_slash(path2), recursive=recursive, **kwargs)

    def rm_file(self, path: str) -> None:
        """Removes an object."""
        path = self._strip(path)
        with self._writing(path):
            self.target.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes objects."""
        with self._writing_below(path):
            self.target.rm(self._kept_slash(path), recursive=recursive, **_given(maxdepth=maxdepth))

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Makes a directory, where the store has any."""
        self.target.mkdir(self._strip(path), create_parents=create_parents, **kwargs)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes a directory and those above it."""
        self.target.makedirs(self._strip(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        self.target.rmdir(self._strip(path))

    def _kept_slash(self, path: Any) -> Any:
        """Stripped; a slash at the end stays, since copying into a directory differs from copying onto a name."""
        if isinstance(path, list):
            return [self._kept_slash(each) for each in cast("list[Any]", path)]
        path = stringify_path(path)
        stripped = self._strip(path)
        return f"{stripped}/" if path.endswith("/") and not stripped.endswith("/") else stripped

    def _must_be_new(self, path: str, mode: str) -> None:
        # Most stores check this themselves, some only when the file is complete, some servers never.
        if "x" in mode and self.target.exists(path):
            raise FileExistsError(path)

    def _wrote(self, path: str) -> None:
        self.reader.wrote(path)

    @contextlib.contextmanager
    def _writing(self, *paths: str) -> Generator[None]:
        for path in paths:
            self.reader.wrote(path)
        try:
            yield
        finally:
            for path in paths:
                self.reader.wrote(path)

    @contextlib.contextmanager
    def _writing_below(self, path: Any) -> Generator[None]:
        trees = [_literal(self._strip(each)) for each in (path if isinstance(path, list) else [path])]
        self._each(trees, self.reader.wrote_below)
        try:
            yield
        finally:
            self._each(trees, self.reader.wrote_below)

    @staticmethod
    def _each(trees: list[str], note: Callable[[str], None]) -> None:
        for tree in trees:
            note(tree)


def _target_url(path: str) -> str:
    """``s3://bucket/key`` of ``stoker://s3/bucket/key``."""
    protocol, _, rest = path.removeprefix(_SCHEME).partition("/")
    if filesystem_class(protocol).root_marker == "/":
        rest = "/" + rest.lstrip("/")
    return f"{protocol}://{rest}"


def _literal(path: str) -> str:
    """The directory above the first wildcard of a path, or the path."""
    for place, letter in enumerate(path):
        if letter in "*?[":
            return path[:place].rpartition("/")[0]
    return path


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
