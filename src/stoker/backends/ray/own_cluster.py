"""A cluster for one run: started by its broker, ended with it, by a keeper where the broker is killed."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from stoker.backends.parents import set_name
from stoker.backends.ray import clusters
from stoker.backends.ray.joining import RayTarget
from stoker.core.errors import ClusterStartError, StokerError

_START = "import sys; from stoker.backends.ray.own_cluster import keep; keep(sys.argv[1], int(sys.argv[2]))"


class OwnCluster:
    """Starts a cluster of one node with a keeper.

    Args:
        cores: that it declares.

    Raises:
        ClusterStartError: it does not start.
    """

    def __init__(self, cores: int) -> None:
        self._folder = tempfile.mkdtemp(prefix="stoker-run-cluster-")
        # In a separate session: what ends the broker's group, a terminal's hang-up too, leaves it time to clean up.
        self._keeper = subprocess.Popen(
            [sys.executable, "-c", _START, self._folder, str(cores)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._keeper.stdout is not None
        said = self._keeper.stdout.readline().decode().strip()
        own = clusters.own(Path(self._folder))
        if said != "up" or own is None:
            self.close()
            raise ClusterStartError(said or "`keeper` of the run's cluster must say that it is up, and has ended")
        self.target = RayTarget(address=own[0], source="the cluster of this run", token_file=own[1])

    def fileno(self) -> int:
        """Descriptor that is readable once the keeper is gone."""
        assert self._keeper.stdout is not None
        return self._keeper.stdout.fileno()

    def close(self) -> None:
        """Ends it; returns when nothing of it is left."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        path = Path(self._folder)
        if clusters.read(path) is not None:  # the keeper was killed
            with contextlib.suppress(StokerError):
                clusters.down(path)
        shutil.rmtree(path, ignore_errors=True)


def keep(folder: str, cores: int) -> None:
    """Entry point of the keeper: a cluster that is up until standard input ends, as it does with the broker."""
    set_name(b"stoker_keeper")
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    path = Path(folder)
    try:
        shape = clusters.NodeShape(cpus=cores, gpus=0, object_store_bytes=clusters.LEAST_OBJECT_STORE_BYTES)
        clusters.up(path, 1, shape)
        _say("up")
        while sys.stdin.buffer.read(1):
            pass
    except StokerError as error:
        _say(str(error.args[0]))
    finally:
        with contextlib.suppress(StokerError):
            clusters.down(path)
        shutil.rmtree(path, ignore_errors=True)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, flush=True)  # noqa: T201
