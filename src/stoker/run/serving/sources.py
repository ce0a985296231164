"""Where a model is, as the command line names it, and which engines could run it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

import msgspec

from stoker.core.errors import ConfigError

EngineName = Literal["torch", "onnx", "int", "rtl"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)

_SUFFIXES: dict[str, EngineName] = {".pt2": "torch", ".onnx": "onnx"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FUNCTION = re.compile(r"(?P<module>[^:@]+):(?P<name>[A-Za-z_]\w*)(?:@(?P<weights>.+))?")


class ModelForm(msgspec.Struct, frozen=True, kw_only=True):
    """One form of a model, and the engine for it.

    Attributes:
        engine: that runs it.
        path: of a file; empty for a function.
        module: that has the function, or its file.
        function: that makes a module and example inputs.
        weights: URL or path of safetensors; empty for those that the function gives the module.
        design: folder of a package's design; empty for one of the default size.
        threads: of an engine.
        source: as it was given, where what it names was fetched from a URL; empty otherwise.
    """

    engine: EngineName
    path: str = ""
    module: str = ""
    function: str = ""
    weights: str = ""
    design: str = ""
    threads: int = 1
    source: str = ""

    @property
    def text(self) -> str:
        """How people write it."""
        if self.source:
            return self.source
        made = f"{self.module}:{self.function}" + (f"@{self.weights}" if self.weights else "")
        return self.path + (f"@{self.design}" if self.design else "") or made


def split_name(text: str) -> tuple[str, str]:
    """Name and source of ``[NAME=]SOURCE``; a name is made of the source where none is given.

    Raises:
        ConfigError: the name is none, or what has no name no URL.
    """
    name, equals, source = text.partition("=")
    if not equals or "/" in name or ":" in name:
        name, source = "", text
    if not name:
        url = remote_part(source)[0]
        match = _FUNCTION.fullmatch(source) if not url else None
        place = _path_of(url) if url else _of_design(source)[0]
        name = match["name"] if match else Path(place.rstrip("/")).stem
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"`MODEL` must have a name of letters, digits, `.`, `_` and `-`, got {name!r}; write NAME={source}"
        )
    return name, source


def remote_part(source: str) -> tuple[str, str]:
    """URL of a file or a folder, and the local design behind ``@``; nothing where the source is on this machine.

    Weights of a function may have a URL too: they are read where the function runs.
    """
    if "://" not in source or _FUNCTION.fullmatch(source) is not None:
        return "", ""
    url, at, design = source.rpartition("@")  # URLs may have an @ as well, in front of a host
    return (url, os.path.abspath(design)) if at and "://" in url and Path(design).is_dir() else (source, "")


def is_model_file(url: str) -> bool:
    """Whether a URL is that of one file, by its suffix; what follows a ``?`` is none of its name."""
    return Path(_path_of(url)).suffix in _SUFFIXES


def _path_of(url: str) -> str:
    """Host and path of a URL."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"`{url}` must be a URL, got one with {error}") from None
    return f"{parts.netloc}{parts.path}"


def forms_of(source: str, threads: int, fetched: Path | None = None) -> list[ModelForm]:
    """The forms in which a model is there, at least one.

    Args:
        source: a file, a folder with one file of each form, a package of an integer model, ``package@design``,
            ``module:function[@weights.safetensors]``, or a URL of one of the first four.
        threads: of an engine.
        fetched: where what is behind the source's URL is on this machine.

    Raises:
        ConfigError: there is no model.
    """
    url, design = remote_part(source)
    if url:
        if fetched is None:
            raise ConfigError(f"`{source}` must be fetched first: a URL is for `stoker serve`")
        return [msgspec.structs.replace(form, source=source) for form in _of_fetched(fetched, url, design, threads)]
    package, design = _of_design(source)
    if design:
        return _of_package(Path(package), threads, os.path.abspath(design))
    path = Path(source)
    if path.is_dir():
        return _of_package(path, threads) if (path / "manifest.json").is_file() else _in_folder(path, threads)
    if path.suffix in _SUFFIXES:
        if not path.is_file():
            raise ConfigError(f"`{source}` must be a file, got none")
        return [ModelForm(engine=_SUFFIXES[path.suffix], path=os.path.abspath(path), threads=threads)]
    if (match := _FUNCTION.fullmatch(source)) is not None:
        weights = match["weights"] or ""
        if weights and not weights.endswith(".safetensors"):
            raise ConfigError(f"`{weights}` must be a file of safetensors")
        if weights and "://" not in weights:
            weights = os.path.abspath(weights)
            if not os.path.isfile(weights):
                raise ConfigError(f"`{weights}` must be a file, got none")
        return [
            ModelForm(engine="torch", module=match["module"], function=match["name"], weights=weights, threads=threads)
        ]
    raise ConfigError(
        f"`{source}` must be a .pt2 or .onnx file, a folder of these, a package of `stoker deploy quantise` "
        "(package@design with a design of `stoker deploy rtl`), a URL of one of these, or "
        "module:function[@weights.safetensors]"
    )


def _of_fetched(place: Path, url: str, design: str, threads: int) -> list[ModelForm]:
    """The forms of what was behind a URL."""
    if is_model_file(url):
        return [ModelForm(engine=_SUFFIXES[Path(_path_of(url)).suffix], path=str(place), threads=threads)]
    if (place / "manifest.json").is_file():
        return _of_package(place, threads, design)
    return _in_folder(place, threads)


def _of_package(folder: Path, threads: int, design: str = "") -> list[ModelForm]:
    """The engines of an integer model: they give the same numbers."""
    engines: tuple[EngineName, ...] = ("int", "onnx")
    path = str(folder.absolute())
    found = [ModelForm(engine=engine, path=path, threads=threads) for engine in engines]
    return [*found, ModelForm(engine="rtl", path=path, design=design, threads=threads)]


def _of_design(source: str) -> tuple[str, str]:
    """Package and design of ``package@design``; the source itself, and nothing, where it is no such pair."""
    package, _, design = source.rpartition("@")
    if package and not Path(source).exists() and Path(package, "manifest.json").is_file():
        return package, design
    return source, ""


def _in_folder(folder: Path, threads: int) -> list[ModelForm]:
    found: dict[EngineName, Path] = {}
    for path in sorted(folder.iterdir()):
        engine = _SUFFIXES.get(path.suffix)
        if engine is None:
            continue
        if engine in found:
            raise ConfigError(f"`{folder}` must have one {path.suffix} file, got {found[engine].name} and {path.name}")
        found[engine] = path
    if not found:
        raise ConfigError(f"`{folder}` must have a .pt2 or an .onnx file, got neither")
    return [ModelForm(engine=engine, path=str(path.absolute()), threads=threads) for engine, path in found.items()]


def chosen_forms(forms: list[ModelForm], engine: str) -> list[ModelForm]:
    """The forms that an engine runs; for ``auto`` all that compute on this machine and do not simulate another one.

    Raises:
        ConfigError: the model is in no form for it.
    """
    found = [form for form in forms if engine == form.engine or (engine == "auto" and form.engine != "rtl")]
    if not found:
        there = ", ".join(sorted({form.engine for form in forms}))
        raise ConfigError(f"`--engine` must be auto or {there} for this model, got {engine}")
    return found
