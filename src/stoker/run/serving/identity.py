"""What a version was loaded from, so that a process that loads it again sees whether that is still the same."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.abc
import importlib.util
import os
import sys
import sysconfig
import tempfile
from collections.abc import Generator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import msgspec

from stoker.core.errors import ServingError
from stoker.run.serving.onnx_files import external_files
from stoker.run.serving.sources import ModelForm

_READ_BYTES = 64 << 20
"""A larger file is known by its size, time and number: to read it takes as long as to load it."""
_SHOWN = 12
_OTHERS = (*(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")), f"{Path(__file__).parents[2]}/")
"""Python's and stoker's own modules."""
_INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folders in which no module is one of the user's project."""
_DESIGN_SUFFIXES = (".sv", ".json", ".hex", ".bin")


class SourceIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What was there.

    Attributes:
        digest: of the contents; of a large file's size, time and number.
        facts: size, time and number of each file: where they are equal, nothing needs to be read.
        imported: files of modules that a function's file imports, from its project.
    """

    digest: str
    facts: list[tuple[str, int, int, int]]
    imported: list[str] = []


def identity_of(form: ModelForm, imported: Sequence[str] = ()) -> SourceIdentity:
    """What is in the files of a model now; what is behind the URL of a function's weights is not looked at.

    Args:
        form: of the model.
        imported: files that its function's file imports, as :func:`imported_files` finds them.

    Raises:
        ServingError: a file is gone.
    """
    try:
        paths = [*_files(form), *map(Path, imported)]
        return SourceIdentity(digest=_digest(paths), facts=_facts(paths), imported=list(imported))
    except FileNotFoundError as error:
        raise ServingError(f"{_subject(form, [str(error.filename)], imported)} is gone") from None
    except OSError as error:
        raise ServingError(f"its source `{form.text}` cannot be read: {error.strerror}") from None


def changed(form: ModelForm, known: SourceIdentity) -> str | None:
    """Why a model is not what it was when it was loaded, in words; None if it is.

    Args:
        form: of the model.
        known: what it was.
    """
    try:
        if _facts([*_files(form), *map(Path, known.imported)]) == known.facts:
            return None
    except OSError:
        pass  # said by what follows
    try:
        found = identity_of(form, known.imported)
    except ServingError as error:
        return f"{error.args[0]}; `stoker serve swap` takes another one"
    if found.digest == known.digest:
        return None
    subject = _subject(form, [each[0] for each in found.facts if each not in known.facts], known.imported)
    return (
        f"{subject} has changed since it was loaded (digest {known.digest[:_SHOWN]}, now {found.digest[:_SHOWN]}); "
        "`stoker serve swap` takes the new one"
    )


def imported_files(form: ModelForm) -> list[str]:
    """Files of the modules of a function's project that this process has imported, but for the function's own.

    The project is the folder of the function's file, of a module in a package the one that the package is in; and the
    current folder, from which a function's file imports as well, unless it is the user's home or the root of all.
    Installed packages are no part of it, wherever they are, nor are hidden folders in it, nor the temporary one.
    """
    own = _own_file(form)
    if own is None:
        return []
    above = 0 if form.module.endswith(".py") else form.module.count(".") + (own.name == "__init__.py")
    roots = [str(own.parents[min(above, len(own.parents) - 1)])]
    if (current := os.getcwd()) not in (os.sep, os.path.expanduser("~")):
        roots.append(current)
    found: set[str] = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or not isinstance(file, str):
            continue
        path = os.path.abspath(file)
        if _of_user(path) and any(_is_below(path, root) for root in roots) and os.path.isfile(path):
            found.add(path)
    return sorted(found - {str(own)})


@contextlib.contextmanager
def seen_imports() -> Generator[Mapping[str, str]]:
    """Digests of the user's files that modules are imported from meanwhile, each of just before it is imported.

    So a file that the import of another one writes counts with what was imported of it, whenever it was written.
    """
    seen = _Seen()
    sys.meta_path.insert(0, seen)
    try:
        yield seen.digests
    finally:
        sys.meta_path.remove(seen)


def changed_since(seen: Mapping[str, str], imported: Sequence[str]) -> str | None:
    """The first file that holds something else than what was imported of it; None if there is none.

    Args:
        seen: by :func:`seen_imports`. A file that is not there was imported in another way: nothing is known of it.
        imported: the files that are looked at.
    """
    return next((name for name in imported if name in seen and _digest_now(name) != seen[name]), None)


class _Seen(importlib.abc.MetaPathFinder):
    """Finds what the finders behind it find, and keeps what is in the files then."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """As a finder does it."""
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is None:
                continue
            if spec.has_location and spec.origin and _of_user(file := os.path.abspath(spec.origin)):
                self.digests[file] = _digest_now(file)
            return spec
        return None


def _of_user(path: str) -> bool:
    """Whether a file is neither Python's nor stoker's nor of an installed package."""
    return not path.startswith(_OTHERS) and _INSTALLED.isdisjoint(Path(path).parts)


def _is_below(path: str, root: str) -> bool:
    """Whether a file is in a folder, but in no hidden one there, nor in the temporary one if that is there."""
    start, temporary = os.path.join(root, ""), os.path.join(tempfile.gettempdir(), "")
    if not path.startswith(start) or (path.startswith(temporary) and not start.startswith(temporary)):
        return False
    return not any(part.startswith(".") for part in Path(path[len(start) :]).parts[:-1])


def _digest_now(name: str) -> str:
    """The digest of one file; empty for one that cannot be read."""
    try:
        return _digest([Path(name)])
    except OSError:
        return ""


def _subject(form: ModelForm, files: Sequence[str], imported: Sequence[str]) -> str:
    """What has changed: a model's source, or, if that alone is another one, a file that it imports."""
    if files and all(each in imported for each in files):
        return f"`{files[0]}`, which its source `{form.text}` imports,"
    return f"its source `{form.text}`"


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
    own = _own_file(form)
    return files if own is None else [own, *files]


def _own_file(form: ModelForm) -> Path | None:
    """The file of a function's module; None where there is none, or it is no function."""
    if not form.function or form.module.endswith(".py"):
        return Path(os.path.abspath(form.module)) if form.function else None
    try:
        spec = importlib.util.find_spec(form.module)
    except (ImportError, ValueError, AttributeError):
        return None
    return Path(os.path.abspath(spec.origin)) if spec is not None and spec.has_location and spec.origin else None


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
