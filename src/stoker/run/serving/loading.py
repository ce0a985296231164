"""Loads a model in one of its forms, and serves the forks of its engines."""

from __future__ import annotations

import contextlib
import functools
import importlib
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from stoker.core.code.definitions import load_function
from stoker.core.errors import ModelChangedError, ServingError
from stoker.core.processes.background import in_background
from stoker.core.processes.parents import die_with, set_name
from stoker.run.serving.identity import (
    SourceIdentity,
    changed,
    changed_since,
    identity_of,
    imported_files,
    seen_imports,
)
from stoker.run.serving.sources import EngineName, ModelForm
from stoker.run.serving.template import ModelOrder
from stoker.serve.engine import Model, ModelEngine
from stoker.serve.processes.model_process import ModelProcess

_NEEDED: dict[EngineName, tuple[str, ...]] = {
    "onnx": ("onnxruntime", "stoker.serve.engines.onnx_model"),
    "torch": ("stoker.serve.engines.torch_model",),
    "int": ("stoker.run.serving.package_model",),
    "rtl": ("stoker.run.serving.package_model",),
}
"""Libraries of engines: seconds of import, of which those that are not needed are spared."""


def prepare(order: bytes) -> None:
    """Imports in the template what an order needs, behind those that answer requests meanwhile."""
    wanted = _read(order)

    def imports() -> None:
        for name in _NEEDED[wanted.form.engine]:
            with contextlib.suppress(ImportError):  # raised again where it is needed
                importlib.import_module(name)

    if wanted.behind:
        in_background(imports)
    else:
        imports()


def serve_order(order: bytes, sock: socket.socket) -> None:
    """Loads the model of an order and forks its engines until the service is gone."""
    set_name(b"stoker_model")
    importlib.invalidate_caches()  # files of the user may be newer than the template
    wanted = _read(order)
    loaded: Callable[[], tuple[Model, bytes]] = functools.partial(load_known, wanted.form, wanted.known)
    if wanted.behind and wanted.form.path:  # the code of a user's function expects the main thread
        loaded = functools.partial(in_background, loaded)
    ModelProcess(sock, die_with).run(loaded)


def _read(order: bytes) -> ModelOrder:
    return msgspec.json.decode(order, type=ModelOrder)


def load_known(form: ModelForm, known: bytes) -> tuple[Model, bytes]:
    """The model, and what it was loaded from.

    Args:
        form: of the model.
        known: what it was loaded from before; empty for the first time.

    Raises:
        ModelChangedError: it is not what it was.
    """
    if known:
        was = found = msgspec.json.decode(known, type=SourceIdentity)
        if why := changed(form, was):
            raise ModelChangedError(why)
        model = load(form)
        if why := changed(form, was):
            raise ModelChangedError(why)
    else:
        model, was, found = _load_first(form)
    if form.engine == "onnx" and Path(form.path).is_file():
        model = _ReadAgain(model, form, was)
    return model, msgspec.json.encode(found)


def _load_first(form: ModelForm) -> tuple[Model, SourceIdentity, SourceIdentity]:
    """The model, what its own files were, and that with what they import: known only when it is loaded."""
    with seen_imports() as seen:
        try:
            was = identity_of(form)
        except ServingError:
            load(form)  # says what is wrong with it in more detail
            raise
        model = load(form)
    found = identity_of(form, imported_files(form))
    if why := changed(form, was):
        raise ServingError(why)
    if name := changed_since(seen, found.imported):
        raise ServingError(f"`{name}`, which its source `{form.text}` imports, was written while it was loaded")
    return model, was, found


class _ReadAgain:
    """A model whose engines read its file again: they must find what the first one did."""

    def __init__(self, model: Model, form: ModelForm, known: SourceIdentity) -> None:
        self._model, self._form, self._known = model, form, known

    @property
    def in_any_thread(self) -> bool:
        return self._model.in_any_thread

    def engine(self) -> ModelEngine:
        self._check()
        made = self._model.engine()
        self._check()
        return made

    def _check(self) -> None:
        if why := changed(self._form, self._known):
            raise ModelChangedError(why)


def load(form: ModelForm) -> Model:
    """The model in one of its forms."""
    if form.engine in ("int", "rtl") or (form.engine == "onnx" and Path(form.path).is_dir()):
        from stoker.run.serving.package_model import PackageModel

        return PackageModel(Path(form.path), form.engine, form.threads, Path(form.design) if form.design else None)
    if form.engine == "onnx":
        from stoker.serve.engines.onnx_model import OnnxModel

        return OnnxModel(Path(form.path), form.threads)
    from stoker.serve.engines import torch_model  # seconds of import that ONNX needs not wait for

    if form.path:
        return torch_model.of_export(Path(form.path), form.threads)
    made = load_function(form.module, form.function)()
    weights = None
    if form.weights:
        from stoker.cache.models.loading import load_safetensors

        # Through the cache, also from this machine's disk: a file of its that all engines map.
        url = form.weights if "://" in form.weights else f"file://{form.weights}"
        weights = load_safetensors(url, progress=False)
    return torch_model.of_definition(made, f"{form.module}:{form.function}", weights, form.threads)
