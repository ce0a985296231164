"""`stoker cluster doctor`: what would keep `--backend ray` from working, each with the next command."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from stoker.backends.ray import clusters, joining
from stoker.backends.ray.installed import check_installed
from stoker.cli.arguments import Parser
from stoker.cli.doctor.check import Check
from stoker.core import host
from stoker.core.errors import StokerError
from stoker.core.extras import require
from stoker.core.units import format_bytes

_LEAST_SHM_BYTES = 2 * clusters.LEAST_OBJECT_STORE_BYTES


def main(argv: list[str]) -> int:
    """Looks; 1 if something hinders."""
    made = Parser(prog="stoker cluster doctor", description="Looks what keeps `--backend ray` from working here.")
    made.add_argument("--insecure", action="store_true", help="a cluster without token authentication will do")
    arguments = made.parse_args(argv)
    checks = check_all(insecure=arguments.insecure)
    for check in checks:
        print(f"{check.status:<5}{check.name:<10}{check.found}" + (f"; {check.remedy}" if check.remedy else ""))
    return int(any(check.status == "fail" for check in checks))


def check_all(*, insecure: bool) -> list[Check]:
    """All checks; what a missing package makes impossible is left out."""
    packages = [_of("ray", check_installed), _of("packages", _packages)]
    own = [check_shm(host.shm_free_bytes()), check_token(clusters.read(clusters.state_folder()))]
    if packages[0].status == "fail":
        return [*packages, *own]
    found = _of("cluster", lambda: _cluster(insecure=insecure))
    return [*packages, *own, found, *([_of("CPUs", _cpus)] if found.status == "ok" and joining.is_joined() else [])]


def _of(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name=name, status="ok", found=look())
    except StokerError as error:
        return Check(name=name, status="fail", found=str(error.args[0]))


def _packages() -> str:
    for package in ("cloudpickle", "cryptography"):
        require(package, extra="cluster")
    return "cloudpickle and cryptography are there"


def _cluster(*, insecure: bool) -> str:
    target = joining.find()
    if target is None:
        return "none is up; a run with `--backend ray` starts one for itself, `stoker cluster up` one that stays"
    joining.connect(target, insecure=insecure)
    return f"{target.address} ({target.source}) lets us join"


def _cpus() -> str:
    from stoker.backends.ray.observing import observe
    from stoker.core.errors import ConfigError

    nodes = observe().nodes
    free, all_cpus = sum(node.free_cpus for node in nodes), sum(node.cpus for node in nodes)
    if not free:
        raise ConfigError(
            f"`cluster` must have free CPUs for data workers, got 0 of {all_cpus} on {len(nodes)} nodes; add nodes by "
            "`ray start --address`, or end jobs; `stoker cluster status` shows who has them"
        )
    return f"{free} of {all_cpus} are free on {len(nodes)} nodes"


def check_shm(free_bytes: int) -> Check:
    """Whether Ray's object store has room: it moves to a disk otherwise, and Ray is slow to start."""
    found = f"{format_bytes(free_bytes)} free in /dev/shm"
    if free_bytes >= _LEAST_SHM_BYTES:
        return Check(name="/dev/shm", status="ok", found=found)
    least = format_bytes(_LEAST_SHM_BYTES)
    return Check(
        name="/dev/shm",
        status="warn",
        found=f"`/dev/shm` must have {least} free for a node of Ray, got {format_bytes(free_bytes)}",
        remedy="mount it larger: `--shm-size` of a container, `mount -o remount,size=2G /dev/shm`",
    )


def check_token(record: clusters.ClusterRecord | None) -> Check:
    """Whether the token of the cluster that stoker started is there and nobody else's."""
    if record is None:
        return Check(name="token", status="ok", found="no cluster of stoker's own needs one")
    try:
        facts = os.stat(record.token_file)
    except OSError as error:
        return Check(
            name="token",
            status="fail",
            found=f"`{record.token_file}` must be the cluster's token, got {error.strerror}",
            remedy="`stoker cluster down`, then `stoker cluster up`",
        )
    if facts.st_mode & 0o077 or facts.st_uid != os.geteuid():
        return Check(
            name="token",
            status="fail",
            found=f"`{record.token_file}` must be readable for this user alone, got mode {facts.st_mode & 0o777:o}",
            remedy=f"chmod 600 {record.token_file}, and `stoker cluster down` if others may have read it",
        )
    return Check(name="token", status="ok", found=str(Path(record.token_file)))
