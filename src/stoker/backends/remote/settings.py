"""The settings of data workers on other machines."""

from __future__ import annotations

from typing import Annotated, ClassVar

from stoker.core.settings import Option, Settings, count, path
from stoker.wire.sockets import check_address

_PREFIX = "static:"
_RULE = "`local` or hosts such as `static:a:7071,b:7071`, each a `stoker cluster host --listen a:7071`"
_BACKEND = "where data workers may run: here, or on hosts too where those here are not enough"
_WORKERS = "data workers on those hosts; auto finds the number"
_SECRET = "secret that those hosts share with this program"


def addresses_of(backend: str) -> tuple[str, ...]:
    """The hosts that a value names; raises ``ValueError`` for anything else."""
    if backend == "local":
        return ()
    if not backend.startswith(_PREFIX):
        raise ValueError(backend)
    found = tuple(backend.removeprefix(_PREFIX).split(","))
    for address in found:
        check_address(f"tcp://{address}")
    return found


def _is_backend(value: object) -> bool:
    return isinstance(value, str) and (value == "local" or bool(addresses_of(value)))


class RemoteSettings(Settings, frozen=True, kw_only=True):
    """Other machines; none unless they are named."""

    prefix: ClassVar[str] = "remote"

    backend: Annotated[
        str, Option(form="local|static:HOST:PORT,…", text=_BACKEND, rule=_RULE, accepts=_is_backend, field="backend")
    ] = "local"
    secret_file: Annotated[str | None, path("FILE", _SECRET)] = None
    workers: Annotated[int | None, count("auto|N", _WORKERS, least=0)] = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """The hosts."""
        return addresses_of(self.backend)
