"""Packages that a program names for its hosts: pip installs them into a separate folder, never into this Python.

A folder for each choice of packages, versions and Python, kept for later runs. pip resolves against what is installed
here first, and only what is missing or has another version goes into the folder. Runs as a child of its session.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import msgspec

from stoker.core.processes.parents import die_with

INSTALL_S = 600.0
"""How long all of it may take."""
MOST_FOLDERS = 8
"""A user has so many; the ones that were used longest ago go."""
_START = "import sys; from stoker.backends.remote.host.packages import main; main(int(sys.argv[1]))"
_WITH_VALUE = frozenset(
    ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--trusted-host", "--proxy", "--cert", "--timeout")
)
"""Options of pip whose value is the next word."""
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet")


class PackageOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is asked for."""

    wanted: tuple[str, ...]
    """Words as pip takes them: names, paths, options."""
    versions: dict[str, str]
    """That the program has, by name: what is installed has these."""
    folder: str
    """In which all folders are."""


class PackageWord(msgspec.Struct, frozen=True, kw_only=True):
    """What the child says, one a line."""

    text: str = ""
    """What it does now."""
    folder: str = ""
    """Where they are: the last word."""
    error: str = ""
    """Why they are not: the last word."""


def packages_home() -> Path:
    """Where this user's folders are: ``$XDG_CACHE_HOME/stoker/packages``, or below ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker" / "packages"


def fingerprint(order: PackageOrder) -> str:
    """The name of the folder that answers an order on this Python."""
    facts = [list(order.wanted), sorted(order.versions.items()), sys.version, sys.prefix]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


class PackageInstall:
    """The child that installs, as its session sees it.

    Args:
        wanted: as pip takes them.
        versions: that the program has.
    """

    def __init__(self, wanted: Sequence[str], versions: Mapping[str, str]) -> None:
        order = PackageOrder(wanted=tuple(wanted), versions=dict(versions), folder=str(packages_home()))
        self._began_s = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(msgspec.json.encode(order))
        os.set_blocking(self._process.stdout.fileno(), False)
        self._buffer = b""

    def fileno(self) -> int:
        """Descriptor of what it says."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def hear(self) -> list[PackageWord]:
        """What it has said since; the last of all words has a folder or an error."""
        is_over, words = False, list[PackageWord]()
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fileno(), 1 << 16):
                self._buffer += data
            is_over = True
        *lines, self._buffer = self._buffer.split(b"\n")
        words += [msgspec.json.decode(line, type=PackageWord) for line in lines]
        if any(word.folder or word.error for word in words):
            self.close()
        elif is_over:
            self.close()
            words.append(PackageWord(error="its process died"))
        elif time.monotonic() - self._began_s > INSTALL_S:
            self.close()
            words.append(PackageWord(error=f"it takes more than {INSTALL_S:.0f} s"))
        return words

    def close(self) -> None:
        """Ends it, if it has not ended."""
        self._process.kill()  # pip, its child, dies with it
        self._process.wait()
        if self._process.stdout is not None and not self._process.stdout.closed:
            self._process.stdout.close()


def use(folder: str) -> str:
    """Makes a folder's packages those of this process; why that can't be, or empty."""
    loaded = sorted(
        f"{distribution.name} {distribution.version}"
        for distribution in importlib.metadata.distributions(path=[folder])
        if any(_is_loaded_from_elsewhere(name, folder) for name in _modules_of(distribution))
    )
    if loaded:
        line = " ".join(name.replace(" ", "==") for name in loaded)
        return f"has loaded other versions already than {', '.join(loaded)}; there: pip install {line}"
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    return ""


def _modules_of(distribution: importlib.metadata.Distribution) -> set[str]:
    """The modules that one finds by what is installed of it."""
    parts = {file.parts[0] for file in distribution.files or () if not file.parts[0].endswith(".dist-info")}
    return {part.partition(".")[0] for part in parts}


def _is_loaded_from_elsewhere(name: str, folder: str) -> bool:
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None) or ""
    return module is not None and not path.startswith(folder + os.sep)


def main(parent_pid: int) -> None:
    """Entry point of the child: an order on standard input, words on standard output."""
    die_with(parent_pid)
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=PackageOrder)
    try:
        _say(installed(order))
    except OSError as error:
        _say(PackageWord(error=str(error)))


def _say(word: PackageWord) -> None:
    sys.stdout.write(msgspec.json.encode(word).decode() + "\n")
    sys.stdout.flush()


def installed(order: PackageOrder) -> PackageWord:
    """The folder that answers an order, filled if it is new; or what pip says why it can't be."""
    home = Path(order.folder)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = home / fingerprint(order)
    with _locked(home):
        if not folder.is_dir() and (error := _install(order, folder)):
            return PackageWord(error=error)
        os.utime(folder)
        _prune(home, folder)
    return PackageWord(folder=str(folder))


def options_among(words: Sequence[str]) -> list[str]:
    """The options of pip among its words, with their values; the others are packages."""
    found, follows = list[str](), False
    for word in words:
        if follows or word.startswith("-"):
            found.append(word)
        follows = not follows and word in _WITH_VALUE
    return found


def _install(order: PackageOrder, folder: Path) -> str:
    """Fills a folder; why not, or empty."""
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder.parent) as temporary:
        part = Path(temporary)
        constraints, report, target = part / "versions.txt", part / "report.json", part / "target"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in order.versions.items()))
        _say(PackageWord(text=f"pip looks for {' '.join(order.wanted)}"))
        error = _run("--dry-run", "--report", str(report), "--constraint", str(constraints), *order.wanted)
        if error:
            return error
        found = json.loads(report.read_bytes())["install"]
        target.mkdir()
        if found:
            named = [f"{entry['metadata']['name']}=={entry['metadata']['version']}" for entry in found]
            _say(PackageWord(text=f"pip installs {' '.join(named)}"))
            # Resolved, so without dependencies: for a folder, pip would take all of these again, torch included.
            urls = [entry["download_info"]["url"] for entry in found]
            if error := _run("--no-deps", "--target", str(target), *options_among(order.wanted), *urls):
                return error
        target.rename(folder)
    return ""


def _run(*words: str) -> str:
    """Runs pip; its last words if it fails."""
    own_pid = os.getpid()
    done = subprocess.run(
        [*_PIP, *words],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, preexec_fn=lambda: die_with(own_pid),
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
    last = lines[-1].removeprefix("ERROR: ") if lines else "no output"
    return f"pip says: {' '.join(last.split())[:300]}" if done.returncode else ""


def _prune(home: Path, used: Path) -> None:
    """Removes folders that nobody has asked for lately; a program that has one loaded has its modules."""
    folders = [path for path in home.iterdir() if path.is_dir() and not path.name.startswith(".") and path != used]
    folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in folders[MOST_FOLDERS - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(home: Path) -> Generator[None]:
    """One program of a user installs at a time; those that wait for the same then find it there."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # the folder itself: no file is left
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(PackageWord(text="waits for packages of another program that are being installed there"))
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
