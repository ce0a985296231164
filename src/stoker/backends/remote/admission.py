"""Whether a machine may have data workers of a program: it must be like the program's own where batches could differ.

Pure: facts of both sides in, why not (with the remedy) out. That a machine makes the same bytes of an item is looked at
by the host, since only there the item is made.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping

from stoker._version import __version__
from stoker.backends.remote.messages import Caller, HostOffer


def this_caller() -> Caller:
    """The facts of this process's Python."""
    return Caller(__version__, _python(), platform.machine())


def this_offer(cores: float, refusal: str = "", loaded: bytes = b"") -> HostOffer:
    """The same of a host, with the cores that it lends, and the program that it has."""
    return HostOffer(__version__, _python(), platform.machine(), cores, refusal, loaded)


def _python() -> str:
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


def why_not_called(caller: Caller, host: HostOffer) -> str:
    """Why a host can't serve a caller at all, as half a sentence with the remedy; empty if it can."""
    if host.stoker != caller.stoker:
        return f"has stoker {host.stoker}, the program {caller.stoker}; there: pip install stoker=={caller.stoker}"
    if host.python != caller.python:
        return f"has {host.python}, the program {caller.python}; start the host with that Python"
    if host.machine != caller.machine:
        return f"has {host.machine} processors, the program's machine {caller.machine}; name another host"
    return ""


def why_not_installed(needed: Mapping[str, str], installed: Mapping[str, str | None]) -> str:
    """Why a host lacks what a program imports: every package that differs, and the line that installs them."""
    differ = {name: version for name, version in needed.items() if installed.get(name) != version}
    if not differ:
        return ""
    found = ", ".join(f"{name} {installed.get(name) or 'not at all'} (the program: {differ[name]})" for name in differ)
    line = " ".join(f"{name}=={version}" for name, version in differ.items())
    return f"has {found}; there: pip install {line}, or for this run: --remote-pip '{line}'"


def why_not_same(seq: int, here: bytes, there: bytes) -> str:
    """Why what a host makes of an item does not do: digests of the program's machine and of the host."""
    if here == there:
        return ""
    if there.startswith(b"raises "):
        error = there.rstrip(b"\0 ").decode(errors="replace")
        return f"{error} at item {seq}; make its files readable there: shared storage, or a URL through the cache"
    return (
        f"makes other bytes of item {seq} ({there[:4].hex()}, the program {here[:4].hex()}): what is made depends on "
        "the machine; name hosts with the same processor and the same files"
    )
