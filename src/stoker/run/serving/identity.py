"""What a version was loaded from, so that a process that loads it again sees whether that is still the same."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stoker.core.errors import ServingError
from stoker.run.serving.onnx_files import external_files
from stoker.run.serving.sources import ModelForm

_READ_BYTES = 64 << 20
"""A larger file is known by its size, time and number: to read it takes as long as to load it."""
_SHOWN = 12
_DESIGN_SUFFIXES = (".sv", ".json", ".hex", ".bin")


class SourceIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What was there.

    Attributes:
        digest: of the contents; of a large file's size, time and number.
        facts: size, time and number of each file: where they are equal, nothing needs to be read.
    """

    digest: str
    facts: list[tuple[str, int, int, int]]


def identity_of(form: ModelForm) -> SourceIdentity:
    """What is in the files of a model now; what is behind the URL of a function's weights is not looked at.

    Raises:
        ServingError: a file is gone.
    """
    try:
        paths = _files(form)
        return SourceIdentity(digest=_digest(paths), facts=_facts(paths))
    except FileNotFoundError:
        raise ServingError(f"its source `{form.text}` is gone") from None
    except OSError as error:
        raise ServingError(f"its source `{form.text}` cannot be read: {error.strerror}") from None


def changed(form: ModelForm, known: SourceIdentity) -> str | None:
    """Why a model is not what it was when it was loaded, in words; None if it is.

    Args:
        form: of the model.
        known: what it was.
    """
    try:
        paths = _files(form)
        if _facts(paths) == known.facts:
            return None
    except OSError:
        pass  # said by what follows
    try:
        found = identity_of(form)
    except ServingError as error:
        return f"{error.args[0]}; `stoker serve swap` takes another one"
    if found.digest == known.digest:
        return None
    return (
        f"its source `{form.text}` has changed since it was loaded (digest {known.digest[:_SHOWN]}, now "
        f"{found.digest[:_SHOWN]}); `stoker serve swap` takes the new one"
    )


def _files(form: ModelForm) -> list[Path]:
    """The files that a model is loaded from."""
    if form.path:
        path = Path(form.path)
        if path.is_dir() or form.engine in ("int", "rtl"):
            # The digest of a package stands for all of its files: what does not agree with it does not load.
            design = sorted(Path(form.design).iterdir()) if form.design else []
            return [path / "digest", *(each for each in design if each.suffix in _DESIGN_SUFFIXES)]
        if form.engine == "onnx":
            try:
                return [path, *(path.parent / name for name in external_files(path))]
            except ValueError:  # said when it is loaded
                return [path]
        return [path]
    files = [Path(form.weights)] if form.weights and "://" not in form.weights else []
    if form.module.endswith(".py"):
        return [Path(os.path.abspath(form.module)), *files]
    try:
        spec = importlib.util.find_spec(form.module)
    except (ImportError, ValueError, AttributeError):
        return files
    return [Path(spec.origin), *files] if spec is not None and spec.has_location and spec.origin else files


def _facts(paths: Sequence[Path]) -> list[tuple[str, int, int, int]]:
    found = [(str(path), path.stat()) for path in paths]
    return [(name, each.st_size, each.st_mtime_ns, each.st_ino) for name, each in found]


def _digest(paths: Sequence[Path]) -> str:
    if len(paths) == 1 and paths[0].name == "digest":
        return paths[0].read_text(encoding="ascii", errors="replace").strip()
    whole = hashlib.sha256()
    for path in paths:
        facts = path.stat()
        if facts.st_size > _READ_BYTES:
            whole.update(repr((facts.st_size, facts.st_mtime_ns, facts.st_ino)).encode())
        else:
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
