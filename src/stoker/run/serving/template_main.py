"""The process that those with models are forked from: ``python -m stoker.run.serving.template_main FD PARENT``."""

from __future__ import annotations

import signal
import socket
import sys

from stoker.core.processes.parents import die_with, set_name
from stoker.run.serving.loading import prepare, serve_order
from stoker.serve.processes.template_process import ModelTemplateProcess


def main() -> None:
    """Forks processes for models until the service is gone."""
    fd, parent = sys.argv[1:]
    die_with(int(parent))
    set_name(b"stoker_template")
    # Of a terminal or a supervisor, to all processes at once: the service drains, and then ends this one.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ModelTemplateProcess(socket.socket(fileno=int(fd)), die_with, prepare, serve_order).run()


if __name__ == "__main__":
    main()
