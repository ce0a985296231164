"""Whatever dies of a run on a Ray cluster: the same batches, and nothing is left; those elsewhere come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.backends.ray import clusters
from tests.backends.ray.conftest import SMALL, needs_ray
from tests.backends.remote.hosts import Slow, Taking, gateways
from tests.faults.harness import below, is_alive, named
from tests.faults.serve import Record, loader_of, served
from tests.waiting import await_that

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]
SETTINGS = {"backend": "ray", "workers": 1, "remote_workers": 2}
OURS = ("stoker_host", "stoker_session", "stoker_worker", "ray::HostActor")


def ours(record: clusters.ClusterRecord, *names: str) -> list[int]:
    """Processes of ours in a cluster, by name."""
    found = clusters.processes(record)
    return [pid for name in names or OURS for pid in named(name, found)]


def brokers() -> list[int]:
    return named("stoker_broker", below(os.getpid()))


def harm(cluster: clusters.ClusterRecord, then: Callable[[Taking, Record], None]) -> Record:
    """A program with workers on the cluster's nodes, to which something happens; nothing of it is left."""
    with served(**SETTINGS) as record:
        taking = Taking(loader_of(Slow(), num_workers=1))
        taking.until_away()
        then(taking, record)
        taking.take(60)
        del taking.iterator
    assert not gateways()
    assert not brokers()
    await_that("nothing is left on the nodes", lambda: not ours(cluster), 20)
    assert not record.quarantined()
    return record


@pytest.fixture(autouse=True)
def environ(joining_environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", joining_environ["XDG_STATE_HOME"])


DRAIN = """
import sys
from stoker.backends.ray import joining
joining.connect()
from ray._raylet import GcsClient
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
import ray, time
client = GcsClient(address=ray.get_runtime_context().gcs_address)
reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
print(client.drain_node(sys.argv[1], reason, "spot", int(1000 * (time.time() + 60))))
"""


def run_in(program: str, *words: str) -> None:
    """Runs a program that joins a cluster; the tests' own process never does."""
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "True" in done.stdout, done.stdout


def holds_head(raylet: int) -> bool:
    """Whether drivers of this machine, such as the broker, have joined by this node: they end with it."""
    return "--head" in Path(f"/proc/{raylet}/cmdline").read_text()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def node_of(actor: int) -> str:
    """The id of an actor's node, from the command line of its raylet."""
    words = Path(f"/proc/{parent(actor)}/cmdline").read_text().split("\0")
    return next(word.partition("=")[2] for word in words if word.startswith("--node_id="))


def kill_each(*names: str) -> Callable[[clusters.ClusterRecord], None]:
    def kill(cluster: clusters.ClusterRecord) -> None:
        for pid in ours(cluster, *names):
            os.kill(pid, signal.SIGKILL)

    return kill


@pytest.mark.slow("a host is started twice, and imports torch each time")
def test_a_host_that_is_killed_is_one_loss_and_another_comes(cluster: clusters.ClusterRecord) -> None:
    before = "ray" in sys.modules, threading.active_count()  # other tests of this process may have imported it

    def kill(taking: Taking, record: Record) -> None:
        assert ("ray" in sys.modules, threading.active_count()) == before
        kill_each("stoker_host")(cluster)
        taking.until_away(20)

    lost = harm(cluster, kill).lost()
    assert len({one.cause for one in lost}) == 1
    assert lost[0].place.endswith(("-0", "-1")), "the name of the node"


@pytest.mark.slow("a broker joins, and has a host started, twice")
def test_a_broker_that_is_killed(cluster: clusters.ClusterRecord) -> None:
    def kill(taking: Taking, record: Record) -> None:
        (broker,) = brokers()
        os.kill(broker, signal.SIGINT)
        taking.take(60)
        assert brokers() == [broker], "Ctrl-C is the program's own affair"
        os.kill(broker, signal.SIGKILL)
        await_that("its hosts end", lambda: record.lost() or taking.take(1), 30)
        taking.until_away(20)

    harm(cluster, kill)


@pytest.mark.exhaustive
@pytest.mark.slow("a host is started again")
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ray::HostActor", signal.SIGKILL),
        ("stoker_session", signal.SIGSTOP),
        ("stoker_host", signal.SIGSTOP),
        ("ray::HostActor", signal.SIGSTOP),
    ],
)
def test_processes_on_a_node(cluster: clusters.ClusterRecord, name: str, number: signal.Signals) -> None:
    def harm_them(taking: Taking, record: Record) -> None:
        for pid in ours(cluster, name):
            os.kill(pid, number)
        taking.take(200)
        taking.until_away(20)

    harm(cluster, harm_them)


@pytest.mark.exhaustive
@pytest.mark.slow("a broker that is stopped renews nothing for longer than hosts wait")
def test_hosts_outlive_a_stopped_broker_while_they_are_connected(cluster: clusters.ClusterRecord) -> None:
    def stop(taking: Taking, record: Record) -> None:
        (broker,) = brokers()
        os.kill(broker, signal.SIGSTOP)
        taking.take(700)
        assert not record.lost()

    harm(cluster, stop)


@pytest.mark.exhaustive
@pytest.mark.slow("hosts wait ten seconds for a broker")
def test_hosts_end_when_all_that_needed_them_is_gone_without_a_word(cluster: clusters.ClusterRecord) -> None:
    def stop(taking: Taking, record: Record) -> None:
        for pid in ours(cluster, "ray::HostActor"):
            os.kill(pid, signal.SIGSTOP)  # Ray's own word of the end does not get through
        hosts = ours(cluster, "stoker_host")
        (gateway,), (broker,) = gateways(), brokers()
        os.kill(broker, signal.SIGSTOP)
        os.kill(gateway, signal.SIGKILL)
        for host in hosts:
            await_that("it ends by itself", lambda host=host: not is_alive(host), 30)
        for pid in ours(cluster, "ray::HostActor"):
            os.kill(pid, signal.SIGCONT)

    harm(cluster, stop)


@pytest.fixture
def other(state_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[clusters.ClusterRecord]:
    """A cluster that may be damaged."""
    needs_ray()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = clusters.state_folder()
    yield clusters.up(folder, 2, SMALL)
    if clusters.read(folder) is not None:
        clusters.down(folder)


@pytest.mark.exhaustive
@pytest.mark.slow("starts a cluster; a node is declared dead after a while")
def test_a_node_whose_raylet_is_killed(other: clusters.ClusterRecord) -> None:
    def kill(taking: Taking, record: Record) -> None:
        (actor,) = ours(other, "ray::HostActor")
        raylet = parent(actor)
        is_head = holds_head(raylet)
        os.kill(raylet, signal.SIGKILL)
        await_that("the host ends with its raylet", lambda: record.lost() or taking.take(1), 30)
        if not is_head:
            taking.until_away(20, 80)

    harm(other, kill)


@pytest.mark.exhaustive
@pytest.mark.slow("starts a cluster")
def test_a_node_that_drains_loses_nothing(other: clusters.ClusterRecord) -> None:
    def drain(taking: Taking, record: Record) -> None:
        hosts = ours(other, "stoker_host")
        raylet = parent(parent(hosts[0]))
        is_head = holds_head(raylet)
        run_in(DRAIN, node_of(parent(hosts[0])))
        await_that("its host ends", lambda: taking.take(1) or not is_alive(hosts[0]), 30)
        if not is_head:
            taking.until_away(20)
            assert not record.lost(), "its workers have finished what they had"

    harm(other, drain)


@pytest.mark.exhaustive
@pytest.mark.slow("starts a cluster; hosts wait ten seconds for a broker")
@pytest.mark.parametrize("daemon", ["gcs/gcs_server", "raylet/raylet"])
def test_daemons_that_are_stopped(other: clusters.ClusterRecord, daemon: str) -> None:
    def stop(taking: Taking, record: Record) -> None:
        for pid in clusters.processes(other):
            if daemon in Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]:
                os.kill(pid, signal.SIGSTOP)
        taking.take(400)
        assert not record.lost(), "hosts stay as long as they are connected"

    harm(other, stop)


@pytest.mark.exhaustive
@pytest.mark.slow("starts a cluster twice")
def test_a_head_that_is_killed_and_started_again(other: clusters.ClusterRecord) -> None:
    found: list[clusters.ClusterRecord] = [other]

    def kill(taking: Taking, record: Record) -> None:
        for pid in clusters.processes(other):
            if "gcs_server" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
        taking.take(200)
        folder = clusters.state_folder()
        clusters.down(folder)
        found[0] = clusters.up(folder, 1, SMALL)
        taking.until_away(20, 80)

    harm(found[0], kill)
    await_that("nothing is left on the new nodes", lambda: not ours(found[0]), 20)


@pytest.mark.exhaustive
@pytest.mark.slow("starts a cluster for the run")
@pytest.mark.parametrize("what", ["stoker_broker", "stoker_keeper"])
def test_a_cluster_of_the_run_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    needs_ray()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with served(**SETTINGS):
        taking = Taking(loader_of(Slow(), num_workers=1))
        taking.until_away(timeout_s=80)
        (folder,) = tmp_path.glob("stoker-run-cluster-*")
        record = clusters.read(folder)
        assert record is not None
        for pid in named(what, below(os.getpid())):
            os.kill(pid, signal.SIGKILL)
        await_that("it ends", lambda: taking.take(1) or not clusters.processes(record), 30)
        taking.until_away(20)
        del taking.iterator
    await_that("nothing is left", lambda: not list(tmp_path.glob("stoker-run-cluster-*")), 30)
    assert not clusters.processes(record)
    await_that("no folder is left", lambda: not folder.exists() and not Path(record.temp_dir).exists(), 10)
