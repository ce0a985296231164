"""Fetches a model of a URL and keeps it: ``python -m stoker.run.serving.fetch_main ahead|behind``.

A process, as what answers requests shares its interpreter with nothing else. It reads the URL, writes a line of JSON,
keeps what it fetched until its standard input ends, and removes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import msgspec

from stoker.core.errors import ConfigError, StokerError
from stoker.core.processes.background import in_background
from stoker.core.processes.parents import set_name
from stoker.run.serving.fetching import Fetched
from stoker.run.serving.onnx_files import external_files
from stoker.run.serving.sources import is_model_file

_MANIFEST = "manifest.json"
_MOST_TEXT = 2000
"""Characters of an error: who reads it takes lines of 64 KiB, and errors of stores have whole pages in them."""
_fetching = threading.Event()
"""Set while a signal is to end what the process does; what it removes at its end is not to be cut short."""
_SUFFIXES = (".pt2", ".onnx")


class _Manifest(msgspec.Struct):
    """The names of a package's files."""

    digests: dict[str, str]


def bring(url: str, *, progress: bool | None = None) -> Path:
    """A model's file, or the folder of its files, on this machine: read through the cache, for this process's life.

    The store is asked whether it still is what the cache has: who names a model again means the one that is there now.

    Args:
        url: of a ``.pt2`` or ``.onnx`` file, of a folder with one of each, or of a package.
        progress: shows a bar; None does on a terminal.

    Raises:
        ConfigError: the folder has no model.
        MissingExtraError: a package for the cache, or for the store, is not installed.
        OSError: it cannot be read.
        ValueError: an ONNX model is none, or names files outside its folder.
    """
    from stoker.cache import Freshness, materialise
    from stoker.cache.filesystem.resolve_url import open_place, settings_in_use
    from stoker.cache.models.folders import with_own_name

    found = settings_in_use()
    rules = tuple(
        rule if rule.freshness is Freshness.IMMUTABLE else dataclasses.replace(rule, freshness=Freshness.ALWAYS)
        for rule in found.all_rules
    )
    settings = msgspec.structs.replace(found, rules=rules)

    def fetch(base: str, names: Sequence[str]) -> Path:
        return materialise(base, names=names, progress=progress, settings=settings)

    def with_companions(base: str, names: Sequence[str]) -> Path:
        """The same with the files that hold weights of ONNX models."""
        folder = fetch(base, names)
        needed = [name for each in names if ".onnx" in each for name in external_files(folder / each)]
        if not needed:
            return folder
        folder = fetch(base, [*names, *needed])
        for name in (*names, *needed):  # ONNX Runtime follows no link out of the model's folder
            with_own_name(folder / name)
        return folder

    if is_model_file(url):
        base = url.partition("?")[0].rpartition("/")[0]
        name = url[len(base) + 1 :]
        return with_companions(base, [name]) / name
    filesystem, path = open_place(url, settings)
    base = path.rstrip("/")
    if filesystem.exists(f"{base}/{_MANIFEST}"):
        manifest = msgspec.json.decode(filesystem.cat_file(f"{base}/{_MANIFEST}"), type=_Manifest)
        return fetch(url, ["digest", _MANIFEST, *manifest.digests])
    listed = [str(each["name"]).rstrip("/").rpartition("/")[2] for each in filesystem.ls(f"{base}/")]
    names = [name for name in sorted(set(listed)) if name.endswith(_SUFFIXES)]
    if not names:
        raise ConfigError(f"`{url}` must have a .pt2 or an .onnx file, or be a package with a {_MANIFEST}, got neither")
    return with_companions(url, names)


def main() -> None:
    """Fetches, says where it is, and stays until nobody needs it."""
    behind = sys.argv[1] == "behind"
    set_name(b"stoker_fetch")
    # Of a terminal, to all processes at once: the service drains, and then ends this one by its standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, _leave)
    url = sys.stdin.buffer.readline().decode("utf-8", "surrogateescape").rstrip("\n")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    _fetching.set()
    ended = threading.Event()
    threading.Thread(target=_watch, args=(ended,), daemon=True).start()
    try:
        with contextlib.closing(answers):
            answers.write(msgspec.json.encode(_found(url, behind)) + b"\n")
        _fetching.clear()
        ended.wait()  # no wait for the signal, which may come a moment before that
    finally:
        _fetching.clear()
        with contextlib.suppress(ImportError):  # nothing was fetched then
            from stoker.cache.models.folders import remove_copies

            remove_copies()
        os._exit(0)  # what threads still fetch is not waited for


def _found(url: str, behind: bool) -> Fetched:
    try:
        place = in_background(lambda: bring(url, progress=False)) if behind else bring(url)
    except ConfigError as error:
        return Fetched(error=_sendable(str(error.args[0])))
    except Exception as error:  # each store has its own
        reason = str(error.args[0]) if isinstance(error, StokerError) else f"{type(error).__name__}: {error}"
        text = f"`{_sendable(url)}` must be a model that can be read here, got {_sendable(reason)}"
        return Fetched(error=f"{text}; `stoker cache warm URL` tries the same")
    return Fetched(path=str(place))


def _sendable(text: str) -> str:
    """The beginning of a text that a store may have written, without what no JSON holds."""
    return text[:_MOST_TEXT].encode("utf-8", "backslashreplace").decode()


def _watch(ended: threading.Event) -> None:
    """Ends the process with its standard input, whatever it is doing."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGUSR1)
    ended.set()


def _leave(_: int, __: FrameType | None) -> None:
    if _fetching.is_set():
        raise SystemExit(0)


if __name__ == "__main__":
    main()
