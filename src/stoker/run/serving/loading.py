"""Loads a model in one of its forms, and serves the forks of its engines."""

from __future__ import annotations

import contextlib
import functools
import socket
from pathlib import Path

import msgspec

from stoker.core.code.definitions import load_function
from stoker.core.processes.parents import die_with
from stoker.run.serving.background import in_background
from stoker.run.serving.sources import ModelForm
from stoker.serve.engine import Model
from stoker.serve.processes.model_process import ModelProcess


def serve_model(fd: int, text: str, *, behind: bool) -> None:
    """Loads a model and forks its engines until the service is gone.

    Args:
        fd: socket to the service.
        text: the form of the model, as JSON.
        behind: whether what answers requests meanwhile goes first.
    """
    form = msgspec.json.decode(text, type=ModelForm)
    loaded = functools.partial(load, form)
    if behind and form.path:  # the code of a user's function expects the main thread
        loaded = functools.partial(in_background, loaded)
    with contextlib.suppress(OSError):  # the service is gone
        ModelProcess(socket.socket(fileno=fd), die_with).run(loaded)


def load(form: ModelForm) -> Model:
    """The model in one of its forms."""
    if form.engine != "torch" and Path(form.path).is_dir():
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
