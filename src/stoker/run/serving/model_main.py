"""The process with a loaded model: ``python -m stoker.run.serving.model_main FD FORM``."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from pathlib import Path

import msgspec

from stoker.core.code.definitions import load_function
from stoker.core.parents import die_with, set_name
from stoker.run.serving.sources import ModelForm
from stoker.serve.engine import Model
from stoker.serve.processes.model_process import ModelProcess


def main() -> None:
    """Loads the model and forks its engines until the service is gone."""
    fd, parent, text = sys.argv[1:]
    die_with(int(parent))
    set_name(b"stoker_model")
    # Of a terminal or a supervisor, to all processes at once: the service drains, and then ends this one.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    form = msgspec.json.decode(text, type=ModelForm)
    with contextlib.suppress(OSError):  # the service is gone
        ModelProcess(socket.socket(fileno=int(fd)), die_with).run(lambda: load(form))


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


if __name__ == "__main__":
    main()
