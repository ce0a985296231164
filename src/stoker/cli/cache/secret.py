"""`stoker cache secret FILE`: a fresh secret for the workers of a cluster and those who read from it."""

from __future__ import annotations

from pathlib import Path

from stoker.cli.arguments import Parser
from stoker.cli.cache.arguments import show
from stoker.core.errors import ConfigError
from stoker.wire.secrets import create_secret


def main(argv: list[str]) -> int:
    """Writes the file.

    Raises:
        ConfigError: there is such a file already, or it cannot be written.
    """
    made = Parser(
        prog="stoker cache secret",
        description="Writes a file with a fresh secret, mode 600. Copy it to every machine of the cluster.",
    )
    made.add_argument("file", metavar="FILE", help="to write; must not exist yet")
    path = Path(made.parse_args(argv).file)
    try:
        create_secret(path)
    except FileExistsError:
        raise ConfigError(
            f"`{path}` must not exist yet, and it does; remove it if no worker and no program uses it"
        ) from None
    except OSError as error:
        raise ConfigError(f"`{path}` must be a file that can be written: {error.strerror}") from None
    show(
        [
            f"Wrote {path}: copy it to every machine of the cluster, mode 600. Next, with it there:",
            f"  stoker cache start --secret-file {path} --listen HOST:PORT --mount s3=s3:// --join RING",
            f"  stoker run --cache --cache-secret-file {path} --cache-join RING train.py",
        ]
    )
    return 0
