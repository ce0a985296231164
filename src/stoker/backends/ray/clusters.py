"""Ray clusters that stoker starts on this machine: several nodes, a token always, and nothing left afterwards.

Ray's own command starts the daemons, in a session for each node, with a mark in their environment. By both they are
found again, also those whose parent was killed and those that write their title over their environment. Imports no Ray.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stoker.backends.ray.installed import check_installed
from stoker.core import host
from stoker.core.errors import ClusterStartError, ConfigError

MARK_ENV = "_RAY_CLUSTER_BY_STOKER"
"""In the environment of all that belongs to a cluster. No `STOKER_` variable: those are settings."""
LEAST_OBJECT_STORE_BYTES = 80_000_000
"""Ray takes no less than 75 MiB."""
_OBJECT_STORE_BYTES = 128 << 20
"""Each node's, unless it is chosen: batches take stoker's own connections."""
_RAYS = "r"
"""Ray's folder in ours, with logs and sockets."""
_START_S = 90.0
_TERM_S, _KILL_S = 1.0, 10.0


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that stoker has started, as it is kept in a file."""

    address: str = ""
    """That of its head; empty while it starts."""
    token_file: str
    temp_dir: str
    """Around Ray's own folder, which any user may read."""
    mark: str
    boot_id: str
    """The machine's; process ids mean nothing on another, or after a restart."""
    host: str
    sessions: tuple[int, ...] = ()
    """Sessions of the nodes' daemons."""


@dataclass(frozen=True, kw_only=True)
class NodeShape:
    """What each node declares; ``None`` leaves it to Ray for the first node, and to none for the others."""

    cpus: int
    gpus: int | None = None
    object_store_bytes: int = _OBJECT_STORE_BYTES


def state_folder() -> Path:
    """Where the user's cluster is noted: ``$XDG_STATE_HOME/stoker/cluster``, or below ``~/.local/state``."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "stoker" / "cluster"


def default_cpus(num_nodes: int) -> int:
    """CPUs of each of several nodes that share this machine."""
    return max(1, int(host.cores()) // num_nodes)


def read(folder: Path) -> ClusterRecord | None:
    """The cluster that is noted in a folder; None if there is none, or what is noted can't be read."""
    try:
        return msgspec.json.decode((folder / "cluster.json").read_bytes(), type=ClusterRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def own(folder: Path) -> tuple[str, str] | None:
    """Address and token file of the cluster that is noted in a folder."""
    record = read(folder)
    return (record.address, record.token_file) if record is not None and record.address else None


def up(folder: Path, num_nodes: int, shape: NodeShape) -> ClusterRecord:
    """Starts a cluster on this machine and notes it in a folder.

    Args:
        folder: of the note; made if it is not there.
        num_nodes: Ray's nodes.
        shape: of each.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: Ray is too old, the folder can't be written, or a cluster is up.
        ClusterStartError: a daemon did not start.
    """
    check_installed()
    with _locked(folder):
        known = read(folder)
        if known is not None and is_here(known) and processes(known):
            raise ConfigError(
                f"`stoker cluster up` must be called once, and the cluster at {known.address or known.host} is up; "
                "`stoker cluster down` ends it"
            )
        if known is not None:
            _forget(folder, known)
        token = folder / "token"
        descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(secrets.token_hex(32))
        record = ClusterRecord(
            token_file=str(token),
            temp_dir=tempfile.mkdtemp(prefix="stoker-ray-", dir="/tmp"),  # sockets' paths must be short
            mark=secrets.token_hex(8),
            boot_id=_boot_id(),
            host=os.uname().nodename,
        )
        _write(folder, record)  # so that `down` finds what this process leaves if it is killed
        try:
            return _start(folder, record, num_nodes, shape)
        except BaseException:
            end(record)
            _forget(folder, record)
            raise


def _start(folder: Path, record: ClusterRecord, num_nodes: int, shape: NodeShape) -> ClusterRecord:
    first = _Node(record, shape, 0, "")
    record = msgspec.structs.replace(record, sessions=(first.session,))
    _write(folder, record)
    first.wait()
    try:
        address = Path(record.temp_dir, _RAYS, "ray_current_cluster").read_text().strip()
    except OSError as error:
        raise ClusterStartError(f"`ray start` must note the address of the head, and has not: {error}") from None
    record = msgspec.structs.replace(record, address=address)
    _write(folder, record)
    # One after the other: Ray gives up a node that is not there within 30 s, and several at once take longer.
    for number in range(1, num_nodes):
        node = _Node(record, shape, number, address)
        record = msgspec.structs.replace(record, sessions=(*record.sessions, node.session))
        _write(folder, record)
        node.wait()
    return record


class _Node:
    """`ray start` for one node; the daemons stay when it has ended."""

    def __init__(self, record: ClusterRecord, shape: NodeShape, number: int, address: str) -> None:
        self._log = Path(record.temp_dir, f"start-{number}.log")
        gpus = shape.gpus if shape.gpus is not None or not number else 0
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--log-style=record", "--disable-usage-stats"),
            *(f"--num-cpus={shape.cpus}", f"--object-store-memory={shape.object_store_bytes}"),
            *((f"--address={address}",) if address else _head_options(Path(record.temp_dir, _RAYS))),
            *((f"--num-gpus={gpus}",) if gpus is not None else ()),
            f"--labels=stoker-node={_label(record.host)}-{number}",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=daemon_environment(os.environ, record),
                start_new_session=True,
                cwd=record.temp_dir,
            )
        self.session = self._process.pid

    def wait(self) -> None:
        """Returns once the daemons are there; raises :class:`ClusterStartError`."""
        try:
            status = self._process.wait(_START_S)
        except subprocess.TimeoutExpired:
            status = None
        if status != 0:
            lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
            found = f"status {status}" if status is not None else f"nothing within {_START_S:.0f} s"
            last = lines[-1].strip() if lines else "no output"
            raise ClusterStartError(
                f"`ray start` must start a node, got {found}: {last[:300]}; `stoker cluster doctor` looks for causes"
            )


def _head_options(folder: Path) -> tuple[str, ...]:
    return "--head", "--port=0", f"--temp-dir={folder}", "--include-dashboard=false"


def daemon_environment(environ: Mapping[str, str], record: ClusterRecord) -> dict[str, str]:
    """The environment of a cluster's daemons, which all that they start inherits."""
    # Ray's own variables are those of another cluster.
    kept = {name: value for name, value in environ.items() if not name.startswith("RAY_")}
    return kept | {
        MARK_ENV: record.mark,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": record.token_file,
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def down(folder: Path) -> int:
    """Ends the cluster that is noted in a folder, and all that it has started; the number of processes that it had.

    Raises:
        ConfigError: there is none, or it is another machine's.
        ClusterStartError: a process does not end.
    """
    if read(folder) is None:
        raise ConfigError(f"`stoker cluster down` must find a cluster, and none is noted in {folder}")
    with _locked(folder):
        record = read(folder)
        if record is None:
            return 0
        if record.boot_id != _boot_id() and record.host != os.uname().nodename:
            raise ConfigError(
                f"`stoker cluster down` must be called where the cluster was started: on {record.host}, not on "
                f"{os.uname().nodename}"
            )
        ended = end(record) if is_here(record) else 0
        _forget(folder, record)
        return ended


def is_here(record: ClusterRecord) -> bool:
    """Whether its process ids are this machine's."""
    return record.boot_id == _boot_id()


def end(record: ClusterRecord) -> int:
    """Ends all processes of a cluster; returns their number."""
    began_s, seen = time.monotonic(), set[int]()
    while left := processes(record):
        late_s = time.monotonic() - began_s
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                if late_s > _TERM_S:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in seen:
                    os.kill(pid, signal.SIGTERM)
        seen.update(left)
        if late_s > _KILL_S:
            raise ClusterStartError(f"`processes` of the cluster must end when they are killed, got {left}")
        time.sleep(0.05)
    return len(seen)


def processes(record: ClusterRecord) -> list[int]:
    """All processes of a cluster, in the order of their ids."""
    marked, titled = set[int](), dict[int, int]()
    wanted = f"{MARK_ENV}={record.mark}".encode()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, session = _state_of(pid)
            if state in b"ZX" or pid == os.getpid():
                continue
            folder = Path("/proc", str(pid))
            if folder.stat().st_uid != os.geteuid():
                continue
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                marked.add(pid)
            # Ray's agents write their title over their environment, and outlive a raylet that is killed.
            elif (folder / "cmdline").read_bytes().startswith(b"ray::"):
                titled[pid] = session
    sessions = {*record.sessions, *(_state_of(pid)[1] for pid in marked if _is_alive(pid))}
    return sorted(marked | {pid for pid, session in titled.items() if session in sessions})


def _state_of(pid: int) -> tuple[bytes, int]:
    """State and session of a process (proc(5), fields 3 and 6 of stat)."""
    words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return words[0], int(words[3])


def _is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}/stat")


def _forget(folder: Path, record: ClusterRecord) -> None:
    shutil.rmtree(record.temp_dir, ignore_errors=True)
    for path in (Path(record.token_file), folder / "cluster.json"):
        path.unlink(missing_ok=True)


def _write(folder: Path, record: ClusterRecord) -> None:
    part = folder / f".cluster.json.{os.getpid()}"
    part.write_bytes(msgspec.json.encode(record))
    part.replace(folder / "cluster.json")


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Holds the folder for one `up` or `down` at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"`{folder}` must be a folder that can be written, got {error.strerror}; name another by XDG_STATE_HOME"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _label(name: str) -> str:
    """A name as Ray takes it for a label."""
    return re.sub(r"[^A-Za-z0-9-]", "-", name)[:50].strip("-") or "node"
