"""The process with a loaded model: ``python -m stoker.run.serving.model_main FD PARENT FORM first|behind``."""

from __future__ import annotations

import importlib
import signal
import sys

from stoker.core.processes.parents import die_with, set_name
from stoker.run.serving.background import in_background


def main() -> None:
    """Loads the model and forks its engines until the service is gone."""
    fd, parent, text, place = sys.argv[1:]
    die_with(int(parent))
    set_name(b"stoker_model")
    # Of a terminal or a supervisor, to all processes at once: the service drains, and then ends this one.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if place == "behind":  # half of the time until a small model is loaded goes into these imports
        in_background(lambda: importlib.import_module("stoker.run.serving.loading"))
    from stoker.run.serving.loading import serve_model

    serve_model(int(fd), text, behind=place == "behind")


if __name__ == "__main__":
    main()
