"""`stoker cluster up`, `status`, `doctor` and `down`, with real daemons."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.backends.ray import clusters
from stoker.cli.cluster.doctor import check_shm, check_token
from stoker.core.errors import ConfigError
from tests.backends.ray.conftest import SMALL, needs_ray

pytestmark = [pytest.mark.integration, pytest.mark.timeout(110)]


def stoker(environ: dict[str, str], *words: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "stoker", "cluster", *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=90, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow("the first that needs Ray's daemons starts them")
def test_status(cluster: clusters.ClusterRecord, joining_environ: dict[str, str]) -> None:
    status, out, err = stoker(joining_environ, "status", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["address"] == cluster.address
    assert [(node["cpus"], node["gpus"]) for node in found["nodes"]] == [(2, 0), (2, 0)]
    assert len({node["name"] for node in found["nodes"]}) == 2
    assert found["grants"] == found["links"] == []


@pytest.mark.slow("starts a cluster")
def test_the_token_is_for_this_user_alone(cluster: clusters.ClusterRecord) -> None:
    assert os.stat(cluster.token_file).st_mode & 0o777 == 0o600
    assert os.stat(cluster.temp_dir).st_mode & 0o077 == 0
    assert check_token(cluster).status == "ok"


def test_a_second_one_is_refused(cluster: clusters.ClusterRecord, joining_environ: dict[str, str]) -> None:
    status, _, err = stoker(joining_environ, "up")
    assert status == 2
    assert f"the cluster at {cluster.address} is up; `stoker cluster down` ends it" in err


@pytest.mark.slow("asks a head that refuses")
def test_who_has_no_token_is_told_so(
    cluster: clusters.ClusterRecord, joining_environ: dict[str, str], tmp_path: Path
) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("0" * 64)
    stranger = joining_environ | {"RAY_ADDRESS": cluster.address, "XDG_STATE_HOME": str(tmp_path)}
    for environ in (stranger, stranger | {"RAY_AUTH_TOKEN_PATH": str(wrong)}):
        status, _, err = stoker(environ, "status", "--insecure")
        assert status == 2
        assert "must know our token, and refuses it; set RAY_AUTH_TOKEN_PATH" in err
        assert len(err.splitlines()) == 1


def test_a_wrong_address_is_told_at_once(joining_environ: dict[str, str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        status, _, err = stoker(joining_environ | {"RAY_ADDRESS": address}, "status")
    assert status == 2
    assert f"`{address}` (RAY_ADDRESS) must be a head of Ray that answers, got" in err
    assert "Connection refused; `stoker cluster up` starts one" in err


@pytest.mark.exhaustive
def test_a_machine_that_is_no_node_is_told_how_to_become_one(
    cluster: clusters.ClusterRecord, joining_environ: dict[str, str]
) -> None:
    # Another machine does not have the sockets of the cluster's nodes.
    hidden = 'mount -t tmpfs other "$0" && exec "$@"'
    enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hidden, cluster.temp_dir]
    if subprocess.run([*enter, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a mount namespace, which is refused here")
    token = {"RAY_AUTH_TOKEN": Path(cluster.token_file).read_text(), "RAY_ADDRESS": cluster.address}
    command = [*enter, sys.executable, "-m", "stoker", "cluster", "status"]
    done = subprocess.run(command, env=joining_environ | token, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "must have this machine as a node" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.exhaustive
@pytest.mark.slow("joins and looks")
def test_doctor(cluster: clusters.ClusterRecord, joining_environ: dict[str, str]) -> None:
    status, out, _ = stoker(joining_environ, "doctor")
    assert status == 0
    assert "4 of 4 are free on 2 nodes" in out
    assert f"{cluster.address} (the cluster that stoker started) lets us join" in out


def test_doctor_on_a_small_dev_shm_and_an_open_token(tmp_path: Path) -> None:
    assert check_shm(64 << 20).status == "warn"
    assert check_shm(1 << 30).status == "ok"
    token = tmp_path / "token"
    record = clusters.ClusterRecord(token_file=str(token), temp_dir="", mark="", boot_id="", host="")
    assert check_token(record).status == "fail"
    token.write_text("x")
    token.chmod(0o644)
    assert f"chmod 600 {token}" in check_token(record).remedy


@contextlib.contextmanager
def one_more(folder: Path) -> Iterator[clusters.ClusterRecord]:
    record = clusters.up(folder, 1, SMALL)
    try:
        yield record
    finally:
        if clusters.read(folder) is not None:
            clusters.down(folder)


@pytest.mark.exhaustive
@pytest.mark.slow("starts and ends a cluster")
@pytest.mark.parametrize("part", ["raylet/raylet", "gcs/gcs_server", "all of it"])
def test_nothing_is_left_whatever_was_killed_before(tmp_path: Path, part: str) -> None:
    needs_ray()
    with one_more(tmp_path) as record:
        for pid in clusters.processes(record):
            command = Path(f"/proc/{pid}/cmdline").read_text()
            if part in command or (part == "all of it" and "ray::" not in command):
                os.kill(pid, signal.SIGKILL)
        assert clusters.down(tmp_path) > 0
    assert not clusters.processes(record)
    assert not Path(record.temp_dir).exists()
    assert os.listdir(tmp_path) == ["lock"]


@pytest.mark.exhaustive
@pytest.mark.slow("starts and ends a cluster")
def test_one_that_died_is_no_obstacle(tmp_path: Path) -> None:
    needs_ray()
    with one_more(tmp_path) as first:
        clusters.end(first)
        with one_more(tmp_path) as second:
            assert clusters.processes(second)
            assert not Path(first.temp_dir).exists()


@pytest.mark.exhaustive
@pytest.mark.slow("starts a cluster")
def test_one_without_tokens_is_refused_unless_that_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joining_environ: dict[str, str]
) -> None:
    needs_ray()
    guarded = clusters.daemon_environment
    monkeypatch.setattr(
        clusters, "daemon_environment", lambda *given: guarded(*given) | {"RAY_AUTH_MODE": "disabled"}
    )  # as a user's own `ray start` would
    with one_more(tmp_path) as record:
        environ = joining_environ | {"RAY_ADDRESS": record.address, "XDG_STATE_HOME": str(tmp_path)}
        status, _, err = stoker(environ, "status")
        assert (status, len(err.splitlines())) == (2, 1)
        assert "must ask for a token, and lets any user of the network run code on it" in err
        assert stoker(environ, "status", "--insecure")[0] == 0


def test_down_without_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must find a cluster, and none is noted"):
        clusters.down(tmp_path)


def test_another_machines_is_not_ended_here(tmp_path: Path) -> None:
    record = clusters.ClusterRecord(
        token_file=str(tmp_path / "token"), temp_dir=str(tmp_path / "t"), mark="x", boot_id="other", host="other"
    )
    clusters._write(tmp_path, record)
    with pytest.raises(ConfigError, match="where the cluster was started: on other"):
        clusters.down(tmp_path)
    assert clusters.read(tmp_path) == record
