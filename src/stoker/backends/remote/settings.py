"""The settings of data workers on other machines."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Annotated, ClassVar

from stoker.core.settings import Option, Settings, count, path, switch
from stoker.wire.sockets import check_address

_PREFIX = "static:"
_RAY = "ray"
_RULE = "`local`, `ray`, or hosts such as `static:a:7071,b:7071`, each a `stoker cluster host --listen a:7071`"
_BACKEND = "where data workers may run: here, or also on hosts or a Ray cluster where those here are not enough"
_INSECURE = "join a Ray cluster without token authentication too, on which any user of the network may run code"
_WORKERS = "data workers elsewhere; auto finds the number"
_ENV = "variables of the program's environment that its data workers on those hosts get too"
_NAMES = "names of variables such as `DATA_ROOT,HF_HOME`"
_PIP = "packages that pip installs on those hosts for the program, in the versions that it has here"
_PACKAGES = "packages as pip takes them, such as `albumentations msgpack==1.1`"
_SECRET = "secret that those hosts share with this program"


def addresses_of(backend: str) -> tuple[str, ...]:
    """The hosts that a value names; raises ``ValueError`` for anything else."""
    if backend in ("local", _RAY):
        return ()
    if not backend.startswith(_PREFIX):
        raise ValueError(backend)
    found = tuple(backend.removeprefix(_PREFIX).split(","))
    for address in found:
        check_address(f"tcp://{address}")
    return found


def _is_backend(value: object) -> bool:
    return isinstance(value, str) and (value in ("local", _RAY) or bool(addresses_of(value)))


def _are_names(value: object) -> bool:
    return isinstance(value, str) and all(name.isidentifier() for name in value.split(","))


def _are_packages(value: object) -> bool:
    return isinstance(value, str) and any(not word.startswith("-") for word in shlex.split(value))


class RemoteSettings(Settings, frozen=True, kw_only=True):
    """Other machines; none unless they are named."""

    prefix: ClassVar[str] = "remote"

    backend: Annotated[
        str,
        Option(form="local|ray|static:HOST:PORT,…", text=_BACKEND, rule=_RULE, accepts=_is_backend, field="backend"),
    ] = "local"
    secret_file: Annotated[str | None, path("FILE", _SECRET)] = None
    workers: Annotated[int | None, count("auto|N", _WORKERS, least=0)] = None
    env: Annotated[str | None, Option(form="NAME,…", text=_ENV, rule=_NAMES, accepts=_are_names)] = None
    pip: Annotated[str | None, Option(form="'PACKAGE …'", text=_PIP, rule=_PACKAGES, accepts=_are_packages)] = None
    insecure: Annotated[bool, replace(switch(_INSECURE), field="insecure")] = False

    @property
    def uses_ray(self) -> bool:
        """Whether hosts are found on a Ray cluster."""
        return self.backend == _RAY

    @property
    def addresses(self) -> tuple[str, ...]:
        """The hosts."""
        return addresses_of(self.backend)

    @property
    def env_names(self) -> tuple[str, ...]:
        """Names of the variables of the environment that hosts get."""
        return tuple(self.env.split(",")) if self.env else ()

    @property
    def packages(self) -> tuple[str, ...]:
        """Words for pip on hosts."""
        return tuple(shlex.split(self.pip)) if self.pip else ()
