"""The directory of a page store: where its files are, which format they have, how large it may grow."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from stoker.cache.policies import Policy
from stoker.cache.settings import CacheSettings
from stoker.core.errors import CacheDirectoryError, CacheUnwritableError
from stoker.core.settings import LEAST_BYTES

FORMAT = "stoker pages 2\n"
"""Content of the file ``format``. A store of another format is refused, never converted."""
DEFAULT_LIMIT_BYTES = 50_000_000_000
DEFAULT_LIMIT_FRAC = 0.2
"""Share of the free space; the smaller of the two bounds counts."""
SEGMENT_BYTES = 64 << 20
LEAST_LIMIT_BYTES = LEAST_BYTES
LARGE_BYTES = 4 << 20
"""Objects of this size and larger have a separate file."""
_NETWORK_TYPES = frozenset(
    [
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "9p", "ceph", "glusterfs", "lustre", "gpfs"),
        *("beegfs", "beegfs_nodev", "pvfs2", "orangefs", "wekafs"),
    ]
)

_BESIDE = ("format", "size", "eviction", "secret", "node", "ring-", "runs", "worker.sock", "lost+found")
"""Prefixes of names that may be in a directory before its pages are."""
_OTHERS = "--dir, --cache=DIR or STOKER_CACHE_DIR name another one"
_PARTS = frozenset({"index", "table", "pulse", "locks", "segments", "large"})
"""Files of a store; each must be there for reading and writing."""

POLICIES: tuple[Policy, ...] = get_args(Policy)


class StoreSettings(CacheSettings, frozen=True, kw_only=True):
    """The cache's settings, and those of a page store that only tests set; the rules define a rule's number.

    Attributes:
        keep_free_frac: fraction of the disk that stays free under any limit.
        max_idle_s: segments unread for so long may be evicted.
        filling_wait_s: longest wait for another process that fetches the same page.
        lock_wait_s: longest wait for another process that writes into the index.
    """

    keep_free_frac: float = 0.1
    max_idle_s: float = 7 * 86400.0
    filling_wait_s: float = 30.0
    lock_wait_s: float = 2.0

    def __post_init__(self) -> None:
        """Checks each value."""
        super().__post_init__()
        if not 0.0 <= self.keep_free_frac < 1.0:
            raise ValueError(f"`keep_free_frac` must be in [0, 1), got {self.keep_free_frac}.")


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of a store's files."""

    root: Path

    @property
    def index(self) -> Path:
        """Where each page is."""
        return self.root / "index"

    @property
    def table(self) -> Path:
        """One row per segment and large object."""
        return self.root / "table"

    @property
    def pulse(self) -> Path:
        """What was read when: written by readers, without locks."""
        return self.root / "pulse"

    @property
    def locks(self) -> Path:
        """An empty file whose byte ranges are locked."""
        return self.root / "locks"

    @property
    def pins(self) -> Path:
        """Prefixes that are pinned, as JSON."""
        return self.root / "pins"

    @property
    def size(self) -> Path:
        """The limit that was last asked for, in digits."""
        return self.root / "size"

    @property
    def eviction(self) -> Path:
        """The policy that was last asked for."""
        return self.root / "eviction"

    @property
    def is_made(self) -> bool:
        """Whether all files of a store exist."""
        return all(path.exists() and path.stat().st_size for path in (self.index, self.table, self.pulse))

    def segment(self, number: int) -> Path:
        """File of a segment."""
        return self.root / "segments" / f"{number:08x}"

    def large(self, number: int) -> Path:
        """File of a large object: its bytes, as they are."""
        return self.root / "large" / f"{number:08x}"

    def large_rows(self, number: int) -> Path:
        """File of the present pages of a large object, and their checksums."""
        return self.root / "large" / f"{number:08x}.pages"

    def page_files(self) -> list[Path]:
        """All files of segments and large objects; their stems are their numbers in base 16."""
        return [path for name in ("segments", "large") for path in (self.root / name).iterdir()]

    @property
    def is_read_only(self) -> bool:
        """Whether there is a store that this process may only read: in an image, or on a disk mounted read-only."""
        try:
            return self.is_made and not os.access(self.root, os.W_OK, effective_ids=True)
        except OSError:
            return False  # its files are not accessible

    def prepare(self) -> None:
        """Create the directory if missing, and check its format and owner. A read-only one is not changed.

        Raises:
            CacheUnwritableError: it cannot be written, and there is no store in it.
            CacheDirectoryError: it belongs to another user, or holds another format or other files.
        """
        try:
            if self.is_read_only:
                self._check()
                self._check_parts(os.R_OK)
                return
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check()
            self.root.chmod(0o700)
            for name in ("segments", "large"):
                (self.root / name).mkdir(mode=0o700, exist_ok=True)
            self._check_parts(os.R_OK | os.W_OK)
        except OSError as error:
            raise self.refusal(error) from error

    def _check_parts(self, mode: int) -> None:
        """Refuses files on which a program would fail at its first read."""
        for path in self.root.iterdir():
            if path.name in _PARTS and not os.access(path, mode, effective_ids=True):
                raise PermissionError(errno.EACCES, f"{os.strerror(errno.EACCES)} to `{path.name}` in it")

    def _check(self) -> None:
        if (owner := self.root.stat().st_uid) != os.geteuid():
            raise self._refusal(f"belong to the user who runs stoker (uid {os.geteuid()}), it belongs to {owner}")
        found = self._found_format()
        if found is None:
            # A folder that is used for something else must not be changed, its mode least of all.
            others = (path.name for path in self.root.iterdir() if not path.name.lstrip(".").startswith(_BESIDE))
            # Another process may have made the cache in between: it writes the format first.
            if (other := next(others, None)) is not None and self._found_format() is None:
                raise self._refusal(f"be an empty folder or a cache, it holds `{other}`; name a new one in it")
            self._write_format()
            found = self._found_format()
        if found != FORMAT:
            known, other = FORMAT.strip(), (found or "").strip()
            raise self._refusal(f"hold format {known!r}, found {other!r}; delete it (the stores have all of it)")

    def _refusal(self, rule: str) -> CacheDirectoryError:
        return CacheDirectoryError(f"`{self.root}` must {rule}; {_OTHERS}", path=str(self.root))

    def refusal(self, error: OSError) -> CacheDirectoryError:
        """The error for a directory in which something could not be created or written."""
        rule = f"be a folder that can be written: {error.strerror}"
        if isinstance(error, FileExistsError | NotADirectoryError):
            return self._refusal(rule)  # not a folder: a wrong name
        return CacheUnwritableError(f"`{self.root}` must {rule}; {_OTHERS}", path=str(self.root))

    def _found_format(self) -> str | None:
        try:
            with open(self.root / "format", encoding="utf-8", errors="replace") as file:
                return file.read(80)
        except FileNotFoundError:
            return None

    def _write_format(self) -> None:
        # Written aside and linked into place: two processes that start at once both find a complete file.
        aside = self.root / f"format.{os.getpid()}"
        aside.write_text(FORMAT, encoding="utf-8")
        try:
            os.link(aside, self.root / "format")
        except FileExistsError:
            pass  # another process was first
        finally:
            aside.unlink()


def default_directory() -> Path:
    """The default directory of pages: ``$STOKER_CACHE_DIR`` or ``~/.cache/stoker/pages``.

    Raises:
        CacheDirectoryError: it would be on a network mount, where locks and mapped files do not work.
    """
    if given := os.environ.get("STOKER_CACHE_DIR"):
        return Path(given)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = home / "stoker" / "pages"
    kind = filesystem_type(directory)
    if is_network(kind):
        raise CacheDirectoryError(
            f"`{directory}` must be on a local disk, it is on {kind}; set STOKER_CACHE_DIR to a local directory.",
            path=str(directory),
        )
    return directory


def is_network(kind: str) -> bool:
    """Whether a type of filesystem, as the kernel names it, is served by another machine (or may be: FUSE)."""
    return kind in _NETWORK_TYPES or kind.startswith("fuse.")


def filesystem_type(path: Path) -> str:
    """Type of the filesystem that holds a path, or will hold it (``ext4``); empty where the kernel does not say."""
    while not path.exists() and path != path.parent:
        path = path.parent
    place = os.path.realpath(path)
    best, kind = "", ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.readlines()
    except OSError:
        return ""
    for line in lines:
        left, _, right = line.partition(" - ")
        mounted = left.split(" ")[4].replace("\\040", " ")
        inside = place == mounted or place.startswith(mounted.rstrip("/") + "/")
        # Of several mounts on one point the last one is visible.
        if inside and len(mounted) >= len(best):
            best, kind = mounted, right.split(" ")[0]
    return kind


def note_limit_bytes(directory: Path, limit_bytes: int) -> None:
    """Stores a requested limit in the directory, for all processes that open it later.

    Args:
        directory: of the store, created if missing.
        limit_bytes: most bytes on disk.

    Raises:
        CacheDirectoryError: the directory cannot be used.
    """
    layout = Layout(directory)
    layout.prepare()
    if noted_limit_bytes(directory) != limit_bytes:
        _note(layout.size, str(limit_bytes))


def note_policy(directory: Path, policy: Policy) -> None:
    """Stores a requested policy in the directory, for all processes that evict from it.

    Args:
        directory: of the store, created if missing.
        policy: which segments are evicted first.

    Raises:
        CacheDirectoryError: the directory cannot be used.
    """
    layout = Layout(directory)
    layout.prepare()
    if noted_policy(directory) != policy:
        _note(layout.eviction, policy)


def noted_policy(directory: Path) -> Policy | None:
    """The policy that was last asked for; None if none was, or it cannot be read.

    Args:
        directory: of the store.
    """
    try:
        noted = Layout(directory).eviction.read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return next((policy for policy in POLICIES if policy == noted), None)


def _note(path: Path, text: str) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    # On a full or read-only disk it still applies to the process that asked for it.
    with contextlib.suppress(OSError):
        try:
            aside.write_text(text, encoding="ascii")
            aside.replace(path)
        except OSError:
            aside.unlink(missing_ok=True)


def noted_limit_bytes(directory: Path) -> int | None:
    """The limit that was last asked for; None if none was, or it cannot be read.

    Args:
        directory: of the store.
    """
    try:
        noted = int(Layout(directory).size.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return noted if noted >= LEAST_LIMIT_BYTES else None


def default_limit_bytes(directory: Path, used_bytes: int = 0) -> int:
    """The default size of a store.

    Args:
        directory: of the store.
        used_bytes: bytes that it takes already, which count as free.
    """
    disk = os.statvfs(directory)
    free_bytes = disk.f_bavail * disk.f_frsize + used_bytes
    return max(LEAST_LIMIT_BYTES, min(DEFAULT_LIMIT_BYTES, int(free_bytes * DEFAULT_LIMIT_FRAC)))


def segment_bytes_for(limit_bytes: int) -> int:
    """Size of segments: an evicted one is a small part of the cache, and a page of 1 MiB fits where it can."""
    size = max(min(SEGMENT_BYTES, limit_bytes // 64), min(4 << 20, limit_bytes // 4))
    return size // 4096 * 4096
