"""`stoker cluster host`: this machine's processors for programs elsewhere, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import importlib
import socket
import sys

from stoker.backends.remote.messages import PURPOSE
from stoker.cli.arguments import Parser, amount
from stoker.core import host
from stoker.core.errors import ConfigError
from stoker.core.extras import require
from stoker.wire.certificates import create_certificate
from stoker.wire.greeting import receive
from stoker.wire.secrets import load_secrets
from stoker.wire.sockets import address_of, listen
from stoker.wire.tls import TlsSocket

_GREETING_S = 5.0
_EPILOG = """\
A program that knows the secret runs code here as this user: give a copy to no other user.
examples:
  stoker cache secret ~/.stoker-secret                 # once; then a copy on each machine, mode 600
  stoker cluster host --listen 10.0.0.7:7071 --secret-file ~/.stoker-secret
  stoker run --backend static:10.0.0.7:7071 --remote-secret-file ~/.stoker-secret train.py"""


def main(argv: list[str]) -> int:
    """Serves; 0 after SIGTERM or Ctrl-C.

    Raises:
        ConfigError: an option is invalid, or the address is not free.
        MissingExtraError: a package is not installed.
    """
    arguments = _parser().parse_args(argv)
    secrets = load_secrets(arguments.secret_file)
    for package, extra in (("cloudpickle", "cluster"), ("cryptography", "cluster"), ("torch", "torch")):
        require(package, extra=extra)
    address = f"tcp://{arguments.listen}"
    try:
        listener = listen(address)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"`--listen` must be a free address of this machine such as 10.0.0.7:7071, got {arguments.listen}: {error}"
        ) from None
    # Imported here: with torch, so that each program finds it loaded.
    server = importlib.import_module("stoker.backends.remote.host.server")
    cores = arguments.cores or host.cores()
    shown = address_of(listener, address).removeprefix("tcp://")
    print(
        f"stoker: {cores:g} cores at {shown} for data workers; SIGTERM or Ctrl-C ends them", file=sys.stderr, flush=True
    )
    own = create_certificate()

    def admit(sock: socket.socket) -> TlsSocket:
        return receive(sock, secrets, own, PURPOSE, _GREETING_S)

    server.HostServer(listener, admit, cores).run()
    return 0


def _parser() -> Parser:
    import argparse

    made = Parser(
        prog="stoker cluster host",
        description="Lends this machine's processors to programs elsewhere, until SIGTERM or Ctrl-C.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--listen", required=True, metavar="HOST:PORT", help="address of this machine; port 0: a free one"
    )
    made.add_argument("--secret-file", required=True, metavar="FILE", help="secret that programs must know")
    made.add_argument(
        "--cores", type=amount(1, 4096, "a number of cores"), metavar="N", help="cores to lend (default: all)"
    )
    return made
