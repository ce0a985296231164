"""Joins a Ray cluster: which one, by which token, and why not, in one line.

Processes of stoker's that import Ray do it by :func:`connect`. The training process never does: Ray starts twenty
threads in it, and ends it when the cluster's head is gone.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from stoker.backends.ray import clusters
from stoker.backends.ray.installed import check_installed
from stoker.core.errors import ConfigError, PeerLostError
from stoker.wire.sockets import check_address, dial

NAMESPACE = "stoker"
"""Namespace of the names that stoker gives to actors."""
_DIAL_S = 3.0
_PROBE_S = 30.0
_GCS_LOST_S = 10
"""A process of ours whose head is gone is ended by Ray after this (60 s by default); others take its place."""


@dataclass(frozen=True, kw_only=True)
class RayTarget:
    """A cluster to join."""

    address: str
    """That of its head, ``host:port``."""
    source: str
    """What named it."""
    token_file: str = ""
    """Token of a cluster that stoker started; empty: where Ray looks for it."""


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a head answers to a token."""

    lets_in: bool
    ray: str = ""
    python: str = ""
    is_node: bool = True
    """Whether this machine is one of the cluster's nodes."""
    error: str = ""


def target_of(environ: Mapping[str, str], own: tuple[str, str] | None) -> RayTarget | None:
    """The cluster to join: the one that ``RAY_ADDRESS`` names, else the one that stoker started; None for neither.

    Args:
        environ: variables of the environment.
        own: address and token file of the one that stoker started.

    Raises:
        ConfigError: ``RAY_ADDRESS`` is no address of a head.
    """
    address = environ.get("RAY_ADDRESS", "").strip()
    if not address:
        return RayTarget(address=own[0], source="the cluster that stoker started", token_file=own[1]) if own else None
    if address.startswith("ray://"):
        raise ConfigError(
            f"`RAY_ADDRESS` must be the address of Ray's head such as 10.0.0.7:6379, got {address}, which is that of a "
            "server for Ray's clients; leave out `ray://` and name the head's own port"
        )
    try:
        _, port = check_address(f"tcp://{address}")
        if not port:
            raise ValueError(address)
    except ValueError:
        raise ConfigError(
            f"`RAY_ADDRESS` must be the address of Ray's head such as 10.0.0.7:6379, got {address!r}; unset it to use "
            "the cluster of `stoker cluster up`"
        ) from None
    token_file = own[1] if own and own[0] == address and not _has_token(environ) else ""
    return RayTarget(address=address, source="RAY_ADDRESS", token_file=token_file)


def _has_token(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("RAY_AUTH_TOKEN") or environ.get("RAY_AUTH_TOKEN_PATH"))


def ray_environment(target: RayTarget, *, with_token: bool) -> dict[str, str]:
    """Variables that Ray must find in a process before it is imported there."""
    told = {
        "RAY_AUTH_MODE": "token" if with_token else "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(_GCS_LOST_S),
        "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
    }
    return told | ({"RAY_AUTH_TOKEN_PATH": target.token_file} if target.token_file and with_token else {})


def why_not_joined(
    target: RayTarget, stranger: ProbeResult, ours: ProbeResult, here: tuple[str, str], *, insecure: bool
) -> str:
    """Why a cluster that answers can't be joined, with the next command; empty if it can.

    Args:
        target: the cluster.
        stranger: what it answers to one without a token.
        ours: what it answers to us.
        here: versions of Ray and Python of this process.
        insecure: whether a cluster without authentication is taken.
    """
    name = f"`{target.address}` ({target.source})"
    answer = stranger if stranger.lets_in else ours
    if stranger.lets_in and not insecure:
        return (
            f"{name} must ask for a token, and lets any user of the network run code on it; start it with "
            "RAY_AUTH_MODE=token, or accept that by --insecure"
        )
    if not answer.lets_in:
        if answer.error:
            return f"{name} must answer as a head of Ray, got {answer.error}; `stoker cluster doctor` looks for causes"
        return (
            f"{name} must know our token, and refuses it; set RAY_AUTH_TOKEN_PATH to a copy of the cluster's token "
            "file (`ray get-auth-token` there prints it)"
        )
    if answer.ray and answer.ray != here[0]:
        return f"{name} must have Ray {here[0]} as this Python, got {answer.ray}; pip install ray=={answer.ray}"
    if answer.python and _minor(answer.python) != _minor(here[1]):
        return f"{name} must have Python {_minor(here[1])} as this one, got {answer.python}; use that Python here"
    if not answer.is_node:  # Ray would abort the process
        mode = "" if stranger.lets_in else "RAY_AUTH_MODE=token "
        return (
            f"{name} must have this machine as a node, with no CPUs if it is to lend none, and has not; here: "
            f"{mode}ray start --address={target.address} --num-cpus=0"
        )
    return ""


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def checked(target: RayTarget, *, insecure: bool) -> dict[str, str]:
    """Looks whether a cluster can be joined; the variables that Ray must find in the process that joins it.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: it can't be, with the reason and the next command.
    """
    version = check_installed()
    try:
        dial(f"tcp://{target.address}", _DIAL_S).close()  # Ray itself would try for a minute
    except PeerLostError as error:
        raise ConfigError(
            f"`{target.address}` ({target.source}) must be a head of Ray that answers, got "
            f"{str(error.args[0]).rpartition(': ')[2]}; `stoker cluster up` starts one, RAY_ADDRESS names another"
        ) from None
    probes = [_Probe(target, with_token=False), _Probe(target, with_token=True)]
    stranger, ours = (probe.result() for probe in probes)
    here = (version, ".".join(map(str, sys.version_info[:3])))
    if refusal := why_not_joined(target, stranger, ours, here, insecure=insecure):
        raise ConfigError(refusal)
    return ray_environment(target, with_token=not stranger.lets_in)


_PROBE = """
import json, os, sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    client = GcsClient(address=sys.argv[1])
    data = client.internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=10)
    nodes = [node for node in client.get_all_node_info(timeout=10).values() if node.state == 0]
    found = json.loads(data) if data else {}
    said = {"lets_in": True, "ray": found.get("ray_version", ""), "python": found.get("python_version", "")}
    said["is_node"] = any(os.path.exists(node.raylet_socket_name) for node in nodes)
except AuthenticationError:
    said = {"lets_in": False}
except Exception as error:
    said = {"lets_in": False, "error": (type(error).__name__ + ": " + " ".join(str(error).split()))[:200]}
print(json.dumps(said))
"""


class _Probe:
    """Asks a head with or without a token, in a separate process: Ray's mode is one for a process, for good."""

    def __init__(self, target: RayTarget, *, with_token: bool) -> None:
        environ = dict(os.environ) | ray_environment(target, with_token=with_token)
        environ |= {"RAY_BACKEND_LOG_LEVEL": "fatal"}
        if not with_token:
            environ = {name: value for name, value in environ.items() if not name.startswith("RAY_AUTH_TOKEN")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROBE, target.address],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ, text=True,
        )  # fmt: skip

    def result(self) -> ProbeResult:
        """The head's answer."""
        try:
            said, _ = self._process.communicate(timeout=_PROBE_S)
            return msgspec.json.decode(said, type=ProbeResult)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return ProbeResult(lets_in=False, error=f"no answer within {_PROBE_S:.0f} s")
        except msgspec.MsgspecError:  # Ray ends processes that have no token
            return ProbeResult(lets_in=False)


def find() -> RayTarget | None:
    """The cluster to join from this process's environment and this user's notes; see :func:`target_of`."""
    return target_of(os.environ, clusters.own(clusters.state_folder()))


def is_joined() -> bool:
    """Whether this process has joined one."""
    return "ray" in sys.modules


def connect(target: RayTarget | None = None, *, insecure: bool = False, namespace: str = NAMESPACE) -> RayTarget:
    """Imports Ray into this process and joins a cluster; returns which.

    Args:
        target: of :func:`find` by default.
        insecure: whether a cluster without authentication is taken.
        namespace: of the names of actors.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: there is none, or it can't be joined, with the reason and the next command.
    """
    assert "ray" not in sys.modules, "Ray reads its variables when it is imported"
    target = target or find()
    if target is None:
        raise ConfigError(
            "`RAY_ADDRESS` must name a cluster, or one be up here, got neither; `stoker cluster up` starts one"
        )
    environ = checked(target, insecure=insecure)
    if environ["RAY_AUTH_MODE"] == "disabled":
        for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            os.environ.pop(name, None)
    os.environ.update(environ)
    import ray

    try:
        ray.init(target.address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"`{target.address}` ({target.source}) must let us join, got {type(error).__name__}: {text}; "
            "`stoker cluster doctor` looks for causes"
        ) from None
    return target
