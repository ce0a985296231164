"""A cluster for one run: the first of its brokers on a machine starts it, the others join, and it ends with the last.

Each broker holds a lock on the cluster's folder, together with the others; the kernel gives it back for one that is
killed. A keeper waits for the lock alone, which it gets when no broker is left, and ends the cluster.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stoker.backends.ray import clusters
from stoker.backends.ray.joining import RayTarget
from stoker.core.errors import ClusterStartError, StokerError
from stoker.core.processes.parents import set_name

_START = "import sys; from stoker.backends.ray.own_cluster import keep; keep(sys.argv[1], int(sys.argv[2]))"
_KEEPER = "keeper"
"""File with the keeper's process id."""
_WAIT_S = 120.0
"""How long another broker may take to start the cluster, or a keeper to end the last one of that name."""
_POLL_S = 0.1


class OwnCluster:
    """A cluster of one node on this machine.

    Args:
        cores: that it declares, if this is the first that asks for it.
        shared: what the brokers of a run's ranks on this machine have in common, and no others; empty for one alone.

    Raises:
        ClusterStartError: it does not start.
    """

    def __init__(self, cores: int, shared: str = "") -> None:
        self._folder = _folder_of(shared)
        self._lock = self._watched = -1
        end_s = time.monotonic() + _WAIT_S
        while not self._join(cores):
            if time.monotonic() > end_s:
                raise ClusterStartError(
                    f"`{self._folder}` must be up or free within {_WAIT_S:.0f} s, and another process holds it"
                )
            time.sleep(_POLL_S)

    @property
    def target(self) -> RayTarget:
        """How it is joined."""
        address, token = clusters.own(self._folder) or ("", "")
        return RayTarget(address=address, source="the cluster of this run", token_file=token)

    def _join(self, cores: int) -> bool:
        """Starts the cluster if no other broker has it, else joins theirs; False to try again."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if os.fstat(lock).st_uid != os.geteuid():
                raise ClusterStartError(f"`{self._folder}` must be this user's, and is another's; remove it")
            is_alone = _take(lock)
            starter = None
            if is_alone and not _is_removed(self._folder, lock) and not self._find_keeper():
                starter = self._start(cores)
            fcntl.flock(lock, fcntl.LOCK_SH)  # a keeper may have been first, and has ended the cluster then
            if starter is not None:
                _let_go_on(starter)
            if not _is_removed(self._folder, lock) and clusters.own(self._folder) and self._find_keeper():
                self._lock, lock = lock, -1
        finally:
            if lock >= 0:
                os.close(lock)
        return self._lock >= 0

    def _find_keeper(self) -> bool:
        """Whether there is a living keeper, which is watched then."""
        if self._watched < 0:
            with contextlib.suppress(OSError, ValueError):
                self._watched = os.pidfd_open(int((self._folder / _KEEPER).read_text()))
        if self._watched >= 0 and _has_ended(self._watched):
            os.close(self._watched)
            self._watched = -1
        return self._watched >= 0

    def _start(self, cores: int) -> subprocess.Popen[bytes]:
        if clusters.read(self._folder) is not None:  # its keeper was killed
            clusters.down(self._folder)
        # In a separate session: what ends the broker's group, a terminal's hang-up too, leaves it time to clean up.
        keeper = subprocess.Popen(
            [sys.executable, "-c", _START, str(self._folder), str(cores)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert keeper.stdout is not None
        said = keeper.stdout.readline().decode().strip()
        if said != "up":
            _let_go_on(keeper)
            keeper.wait()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise ClusterStartError(said or "`keeper` of the run's cluster must say that it is up, and has ended")
        return keeper

    def fileno(self) -> int:
        """Descriptor that is readable once the keeper is gone."""
        return self._watched

    def close(self) -> None:
        """Leaves it; it ends, unless others have joined it."""
        lock, self._lock = self._lock, -1
        if lock < 0:
            return
        try:
            if _take(lock) and not _is_removed(self._folder, lock):
                with contextlib.suppress(StokerError):
                    clusters.down(self._folder)
                shutil.rmtree(self._folder, ignore_errors=True)
        finally:
            os.close(lock)
        if self._watched >= 0:
            os.close(self._watched)
            self._watched = -1


def _folder_of(shared: str) -> Path:
    if not shared:
        return Path(tempfile.mkdtemp(prefix="stoker-run-cluster-"))
    return Path(tempfile.gettempdir(), f"stoker-run-cluster-{os.geteuid()}-{shared}")


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _is_removed(folder: Path, lock: int) -> bool:
    """Whether the folder that was opened is not the one of that name any more."""
    try:
        return os.stat(folder).st_ino != os.fstat(lock).st_ino
    except FileNotFoundError:
        return True


def _let_go_on(keeper: subprocess.Popen[bytes]) -> None:
    """The lock is held together with the others from now on: the keeper may wait for it."""
    assert keeper.stdin is not None
    keeper.stdin.close()


def _take(lock: int, *, alone: bool = True) -> bool:
    try:
        fcntl.flock(lock, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def keep(folder: str, cores: int) -> None:
    """Entry point of the keeper: a cluster that is up as long as a broker holds the lock of its folder."""
    set_name(b"stoker_keeper")
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    path = Path(folder)
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        shape = clusters.NodeShape(cpus=cores, gpus=0, object_store_bytes=clusters.LEAST_OBJECT_STORE_BYTES)
        clusters.up(path, 1, shape)
        (path / _KEEPER).write_text(str(os.getpid()))
        _say("up")
        sys.stdin.buffer.read()  # the starter still holds the lock alone; or it has died
        fcntl.flock(lock, fcntl.LOCK_EX)  # granted when the last broker has ended, however that came
    except StokerError as error:
        _say(str(error.args[0]))
        return
    with contextlib.suppress(StokerError):
        clusters.down(path)
    shutil.rmtree(path, ignore_errors=True)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, flush=True)  # noqa: T201
