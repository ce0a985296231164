"""`stoker serve swap MODEL SOURCE`: tells a running service to let a new version take over."""

from __future__ import annotations

import argparse
from pathlib import Path

from stoker.cli.arguments import Parser, amount, duration, share
from stoker.core.saying import say
from stoker.run.serving.changing import change_version
from stoker.wire.secrets import load_secrets

_EPILOG = """\
The new version loads and warms next to the old one, then answers a share of the requests for a time, then all. If it
fails for one request, or loses engines by itself, the old version answers again, that request included.
SOURCE is as in `stoker serve run`, and must take and give the same tensors.
examples:
  stoker serve swap digits exported-2/
  stoker serve swap digits new.onnx --canary 5% --for 60s"""


def main(argv: list[str]) -> int:
    """Changes the version; 0 if it changed, 1 if the service went back to the old one.

    Raises:
        ServingError: the service does not answer, or refuses.
        ConfigError: its secret cannot be read.
    """
    arguments = _parser().parse_args(argv)
    plan = {
        "source": _absolute(arguments.source), "canary_frac": arguments.canary, "hold_s": arguments.hold,
        **({"slowdown": arguments.slowdown} if arguments.slowdown else {}),
    }  # fmt: skip
    token = _secret(arguments.token_file) if arguments.token_file else ""
    try:
        outcome = change_version(arguments.url, arguments.model, plan, token)
    except KeyboardInterrupt:
        # The connection is closed by now, which stops the change.
        say(f"the change is stopped: `{arguments.model}` keeps the version that answered before")
        raise
    changed = bool(outcome["changed"])
    print(f"version {outcome['version']} answers" + (": " if changed else ", as before: ") + str(outcome["reason"]))
    return 0 if changed else 1


def _secret(path: str) -> str:
    secrets = load_secrets(path)
    return (secrets.of(secrets.own) or b"").decode("latin-1")


def _absolute(source: str) -> str:
    """The source as seen from any folder, where it is a file."""
    path = Path(source)
    if path.exists():
        return str(path.absolute())
    function, at, weights = source.partition("@")
    module, colon, name = function.partition(":")
    if module.endswith(".py") and Path(module).exists():
        function = f"{Path(module).absolute()}{colon}{name}"
    elif at and Path(function).exists():  # a package and its design
        function = str(Path(function).absolute())
    if at and Path(weights).exists():
        weights = str(Path(weights).absolute())
    return f"{function}{at}{weights}"


def _parser() -> Parser:
    parser = Parser(
        prog="stoker serve swap",
        description="Lets a new version of a model take over in a running service.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="name of the model")
    add("source", metavar="SOURCE", help="where the new version is")
    add("--url", default="http://127.0.0.1:8000", help="of the service (default: http://127.0.0.1:8000)")
    add(
        "--canary",
        type=share("10%", with_all=True),
        default=0.1,
        metavar="SHARE",
        help="of the requests at first (default: 10%%)",
    )
    add("--for", dest="hold", type=duration("5s"), default=5.0, metavar="TIME", help="for so long (default: 5s)")
    add("--slowdown", type=amount(0.01, 1e6), metavar="X", help="refuse a version that takes X times as long")
    add("--token-file", metavar="FILE", help="token of the service")
    return parser
