"""`stoker serve run MODEL…`: answers requests until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time

from stoker.cli.arguments import Parser, duration, whole
from stoker.cli.serve.arguments import size
from stoker.core.errors import ConfigError
from stoker.core.extras import require
from stoker.core.host import cores
from stoker.core.saying import say
from stoker.records.events import ServedWindow
from stoker.records.runlog import RUNS_FOLDER
from stoker.run.serving.sources import ENGINES, split_name
from stoker.scale.serving import ServingRules
from stoker.ui.serving import ServedLine
from stoker.ui.terminal import style_for

SERVED_BY = ("uvicorn", "uvloop", "httptools", "starlette", "prometheus_client")
"""What is asked of the extra `serve`."""
_EPILOG = """\
MODEL is [NAME=]SOURCE; SOURCE is a file of torch.export (.pt2) or ONNX (.onnx), a folder with one of each, a package of
`stoker deploy quantise` (PACKAGE@DESIGN with a folder of `stoker deploy rtl`, for --engine rtl), a URL of one of these,
or module:function[@weights.safetensors], where the function returns a module and example inputs.
A .pt2 file and a function are programs: they run as this user. Requests hold numbers only.
examples:
  stoker serve run model.onnx --slo 20ms
  stoker serve run digits=exported/ --engine auto --port 8000
  stoker serve run s3://models/digits.onnx --slo 20ms
  stoker serve run model.py:make@weights.safetensors --engines 4"""


_MAX_BATCH = "most samples of requests that are joined (default: 32); one with more, at most 1024, runs alone"


def main(argv: list[str]) -> int:
    """Serves; 0 after a drain.

    Raises:
        MissingExtraError: what serves HTTP is not installed.
        ConfigError: an option is invalid, or the address is taken.
        ServingError: a model does not load.
    """
    arguments = _parser().parse_args(argv)
    for module in SERVED_BY:
        require(module, extra="serve")
    if arguments.grpc_port is not None:
        for module in ("grpc", "google.protobuf"):
            require(module, extra="serve")
    # Imported here: without the extra, the error above is what is shown.
    from stoker.run.serving.service import ServicePlan, serve
    from stoker.run.serving.starting import StartPlan
    from stoker.serve.http.door import ClientBounds
    from stoker.serve.models.version import VersionSettings
    from stoker.serve.processes.pooled import PoolSettings

    here = max(1, math.floor(cores()))
    engines = arguments.engines or min(2, here)
    threads = arguments.threads or max(1, here // engines)
    slo_s = arguments.slo or math.inf
    models = [split_name(text) for text in arguments.models]
    try:
        pool = PoolSettings(
            engines=engines,
            max_batch=arguments.max_batch,
            slot_bytes=arguments.slot_bytes,
            start_s=arguments.start_time,
        )
        plan = ServicePlan(
            models=models,
            start=StartPlan(
                engine=arguments.engine,
                rules=ServingRules(slo_s=slo_s, max_batch=arguments.max_batch, max_waiting=arguments.max_waiting),
                version=VersionSettings(pool=pool, hang_s=arguments.hang),
                threads=threads,
            ),
            door=ClientBounds(
                slo_s=slo_s, max_body_bytes=arguments.max_body, body_s=arguments.body_time,
                token=_token(arguments.token_file),
                max_held_bytes=max(ClientBounds.max_held_bytes, 2 * arguments.max_body),
            ),
            host=arguments.host,
            port=arguments.port,
            grpc_port=arguments.grpc_port,
            drain_s=arguments.drain,
            folder=os.path.abspath(arguments.run_dir or os.path.join(RUNS_FOLDER, _run_name(models[0][0]))),
            argv=["stoker", "serve", "run", *argv],
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(f"{error}; see `stoker serve run --help`") from None
    line = ServedLine(style_for(sys.stderr, os.environ))
    if not sys.stderr.isatty() or arguments.quiet:
        serve(plan, say, _nothing)
        return 0

    def show(window: ServedWindow) -> None:
        sys.stderr.write("\r\x1b[K" + line.render(window))
        sys.stderr.flush()

    def say_above(text: str) -> None:
        sys.stderr.write("\r\x1b[K")
        say(text)

    serve(plan, say_above, show)
    return 0


def _nothing(_: ServedWindow) -> None:
    """No line where nobody looks."""


def _token(path: str | None) -> bytes | None:
    if path is None:
        return None
    from stoker.wire.secrets import load_secrets

    secrets = load_secrets(path)
    found = secrets.of(secrets.own)
    if found is None:
        raise ConfigError(f"`{path}` must hold one secret, or one for the identity `default`")
    return found


def _run_name(model: str) -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-serve-{model}-{os.getpid()}"


def _parser() -> Parser:
    parser = Parser(
        prog="stoker serve run",
        description="Answers requests with models, by the Open Inference Protocol, version 2, over HTTP.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("models", metavar="MODEL", nargs="+", help="[NAME=]SOURCE; see below")
    add("--engine", choices=("auto", *ENGINES), default="auto",
        help="what computes (default: the fastest, as timed; never rtl, a simulated design)")  # fmt: skip
    add("--slo", type=duration("20ms"), metavar="TIME", help="time from a request to its answer (default: no promise)")
    add("--engines", type=whole(1, 256), metavar="N", help="processes that compute (default: 2, on one core 1)")
    add("--threads", type=whole(1, 256), metavar="N", help="threads of each (default: the cores over the engines)")
    add("--max-batch", type=whole(1, 4096), default=32, metavar="N", help=_MAX_BATCH)
    add("--max-waiting", type=whole(1), default=1024, metavar="N", help="most requests that wait (default: 1024)")
    add("--host", default="127.0.0.1", help="to listen at; others than this machine need --token-file")
    add("--port", type=whole(0, 65535), default=8000, metavar="PORT", help="0 for a free one (default: 8000)")
    add("--grpc-port", type=whole(0, 65535), metavar="PORT", help="serve gRPC as well, there (Triton's is 8001)")
    add("--token-file", metavar="FILE", help="clients must send `Authorization: Bearer` and the token in it")
    add("--max-body", type=size, default=64 << 20, metavar="SIZE", help="of a request (default: 64MiB)")
    add("--slot-bytes", type=size, default=256 << 20, metavar="SIZE",
        help="room for the tensors of a batch; only what is used takes memory (default: 256MiB)")  # fmt: skip
    add(
        "--body-time",
        type=duration("10s"),
        default=10.0,
        metavar="TIME",
        help="for headers, then a body (default: 10s)",
    )
    add("--hang", type=duration("1s"), default=1.0, metavar="TIME",
        help="an engine that takes longer, and 20 times what it should, is replaced (default: 1s)")  # fmt: skip
    add("--start-time", type=duration("5min"), default=300.0, metavar="TIME", help="to load and warm (default: 5min)")
    add("--drain", type=duration("30s"), default=30.0, metavar="TIME", help="for answers after SIGTERM (default: 30s)")
    add("--run-dir", metavar="DIR", help=f"folder of the records (default: {RUNS_FOLDER}/TIME-serve-NAME-PID)")
    add("--quiet", action="store_true", help="no live line")
    return parser
