"""Replaces this process by plain python running the user's program, with the hook in its environment.

Owns the command line, the environment and the run folder's name. The program is never run inside stoker's interpreter:
under `runpy`, spawned children were unserved, and late threads and exit handlers saw a foreign ``__main__``. Errors of
the program's name (no such file, no ``__main__``) are left to python, whose words and exit status they then have.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from stoker.backends.remote.settings import RemoteSettings
from stoker.core.errors import ConfigError
from stoker.core.extras import require
from stoker.feed.replay import launcher_of
from stoker.run.environment import ACTIVE_ENV, CACHE_ENV
from stoker.run.run_context import Active
from stoker.run.settings import RunSettings
from stoker.wire.secrets import load_secrets

SITE_DIR = str(Path(__file__).resolve().parent / "site")
"""Holds the ``sitecustomize`` that arms the hook; goes to the front of ``PYTHONPATH``."""
ALLOCATOR_ENV = "PYTORCH_CUDA_ALLOC_CONF"
"""Options of torch's allocator, read when CUDA starts."""
RUNS_DIR = "stoker-runs"
"""Where run folders are made, below the current directory, unless the user names one."""


def launch(settings: RunSettings, program: Sequence[str], *, fit_plan: str = "", expandable: bool = False) -> NoReturn:
    """Becomes ``python [flags] program…``; process id, standard streams and signals stay those of this process.

    Args:
        settings: Merged settings of the run; ``off`` runs the program without stoker.
        program: What python would be given: a script or ``-m module``, then the program's arguments.
        fit_plan: File with the plan that makes it fit.
        expandable: Whether segments of CUDA's allocator are to grow.

    Raises:
        ConfigError: Python was started in a way that cannot carry the hook to the program.
    """
    command, environ = command_of(settings, program, fit_plan=fit_plan, expandable=expandable)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None: closed before python started
            stream.flush()  # exec drops what is still in buffers
    os.execve(sys.executable, command, environ)


def command_of(
    settings: RunSettings, program: Sequence[str], *, explain_to: str = "", profile: str = "",
    fit_plan: str = "", expandable: bool = False,
) -> tuple[list[str], dict[str, str]]:  # fmt: skip
    """Returns the command line and the environment with which a program is run.

    Args:
        settings: Merged settings of the run; ``off`` runs the program without stoker.
        program: A script or ``-m module``, then the program's arguments.
        explain_to: File for an explanation, where the program is only run to explain its loaders.
        profile: Options of `stoker profile` as JSON, where the program is measured.
        fit_plan: File with the plan that makes the program fit.
        expandable: Whether segments of CUDA's allocator are to grow.

    Raises:
        ConfigError: Python was started in a way that cannot carry the hook to the program.
    """
    environ = plain_environment(os.environ)
    if not settings.report.off:
        check_interpreter()
        run_id = run_name(program, environ)
        active = Active(
            settings=settings,
            run_dir=run_folder(settings.report.run_dir, run_id),
            # Ranks that were started one by one have only the given folder in common.
            run_id=run_id if environ.get("WORLD_SIZE", "") in ("", "1") else "",
            program=tuple(program),
            launcher=launcher_of(environ),
            pid=os.getpid(),
            explain_to=explain_to,
            profile=profile,
            fit_plan=fit_plan,
        )
        environ = served_environment(environ, active)
        if expandable:
            environ[ALLOCATOR_ENV] = _with_expandable(environ.get(ALLOCATOR_ENV, ""))
        if settings.remote.backend != "local":
            check_remote(settings.remote)
        if settings.cache.directory != "off":
            require_cache()
            from stoker.run.caching import session

            environ |= session.environment(settings.cache, run_id, quiet=settings.report.quiet)
    else:
        environ = off_environment(environ)
    return [sys.executable, *interpreter_flags(sys.orig_argv), *program], environ


def _with_expandable(options: str) -> str:
    """The allocator's options with growing segments, unless they say otherwise."""
    if "expandable_segments" in options:
        return options
    return f"{options},expandable_segments:True" if options else "expandable_segments:True"


def require_cache() -> None:
    """Requires the packages of the cache's extra, which its modules import.

    Raises:
        MissingExtraError: One is not installed.
    """
    for package in ("fsspec", "xxhash"):
        require(package, extra="cache")


def check_remote(remote: RemoteSettings) -> None:
    """Requires what data workers on other machines need, before the program starts.

    Raises:
        MissingExtraError: A package of the extra is not installed.
        ConfigError: The secret is missing or can't be used, or a Ray cluster can't be joined.
    """
    if remote.uses_ray:
        check_ray(remote)
    for package in ("cloudpickle", "cryptography"):
        require(package, extra="ray" if remote.uses_ray else "cluster")
    if remote.uses_ray:
        return
    if remote.secret_file is None:
        raise ConfigError(
            f"`--remote-secret-file` must be given with `--backend {remote.backend}`, got nothing; "
            "`stoker cache secret FILE` writes one, of which each host needs a copy"
        )
    load_secrets(remote.secret_file)
    missing = [name for name in remote.env_names if name not in os.environ]
    if missing:
        raise ConfigError(f"`--remote-env` must name variables that are set, got {missing[0]}; export it first")


def check_ray(remote: RemoteSettings) -> None:
    """Looks whether there is Ray, and whether its cluster lets us in; where there is none, the run starts one.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: It is too old, or the cluster can't be joined.
    """
    from stoker.backends.ray import installed, joining

    installed.check_installed()
    target = joining.find()
    if target is not None and os.environ.get("LOCAL_RANK", "0") == "0":  # once a machine
        joining.checked(target, insecure=remote.insecure)


def interpreter_flags(orig_argv: Sequence[str]) -> list[str]:
    """Returns python's own options of a command line, verbatim, so that the program runs under the same ones.

    Taken from the command line rather than from ``sys.flags``, which lacks ``-u`` and ``-i`` and mixes ``-W`` with
    ``PYTHONWARNINGS``.
    """
    flags: list[str] = []
    words = iter(orig_argv[1:])
    for word in words:
        if word in ("-", "--") or not word.startswith("-"):
            break
        if word.startswith("--"):
            flags += [word, next(words, "")]  # --check-hash-based-pycs MODE, the only long one that runs a program
            continue
        end = _first_with_argument(word)
        if end < len(word) and word[end] in "cm":
            return [*flags, word[:end]] if end > 1 else flags
        flags.append(word)
        if end == len(word) - 1:
            flags.append(next(words, ""))
    return flags


def _first_with_argument(word: str) -> int:
    """Position in a cluster of short options (``-uW``) of the one that takes an argument, else its length."""
    return next((at for at, letter in enumerate(word) if at and letter in "cmWX"), len(word))


def plain_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment as the program would have it without stoker, an outer `stoker run` included."""
    plain = dict(environ)
    for name in (ACTIVE_ENV, CACHE_ENV):
        plain.pop(name, None)
    _set_path(plain, _other_path(plain))
    if "LC_CTYPE" in plain and _coerced_locale():
        # Python adds it in the C locale, and a program started with it would no longer see the C locale (PEP 538), so
        # `sys.flags.utf8_mode` would differ from plain python's.
        del plain["LC_CTYPE"]
    return plain


def served_environment(environ: Mapping[str, str], active: Active) -> dict[str, str]:
    """Returns the environment that makes the program and its child interpreters arm the hook."""
    served = dict(environ)
    served[ACTIVE_ENV] = active.to_environment()
    _set_path(served, [SITE_DIR, *_other_path(served)])
    return served


def off_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment in which a program that uses stoker itself gets torch's own loaders as well."""
    off = dict(environ)
    off.pop("STOKER_DISABLE", None)  # says the same or, overruled, the opposite
    off["STOKER_OFF"] = "1"
    return off


def _other_path(environ: Mapping[str, str]) -> list[str]:
    path = environ.get("PYTHONPATH", "")
    return [entry for entry in path.split(os.pathsep) if entry != SITE_DIR] if path else []


def _set_path(environ: dict[str, str], entries: Sequence[str]) -> None:
    # An empty entry between separators means the current directory, an empty variable means none at all.
    if entries:
        environ["PYTHONPATH"] = os.pathsep.join(entries)
    else:
        environ.pop("PYTHONPATH", None)


def _coerced_locale() -> bool:
    """True where python itself, at the start of this process, added ``LC_CTYPE`` to the environment."""
    try:
        at_start = Path("/proc/self/environ").read_bytes()
    except OSError:
        return False  # no such file system: keep the value
    return not any(entry.startswith(b"LC_CTYPE=") for entry in at_start.split(b"\0"))


def run_folder(chosen: str | None, run_id: str) -> str:
    """Returns the absolute path of the run folder, which is not made here; the ranks of one torchrun share it."""
    return os.path.abspath(os.path.expanduser(chosen) if chosen else os.path.join(RUNS_DIR, run_id))


def run_name(program: Sequence[str], environ: Mapping[str, str]) -> str:
    """Returns a name that no other run on this host has; the ranks of one torchrun share it."""
    pid, started_unix_s = os.getpid(), time.time()
    if "TORCHELASTIC_RUN_ID" in environ and "LOCAL_RANK" in environ:
        pid = os.getppid()
        started_unix_s = _started_unix_s(pid) or started_unix_s
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started_unix_s))
    return f"{stamp}-{program_name(program)}-{pid}"


def program_name(program: Sequence[str]) -> str:
    """Returns a short name of a program, fit for a file name: the script without ``.py``, or the module."""
    head, rest = program[0], program[1:]
    if head == "-m" and rest:
        name = rest[0]
    elif head.startswith("-m"):
        name = head[2:]
    elif head.startswith("-"):
        name = "stdin" if head == "-" else "command"
    else:
        path = Path(os.path.abspath(head))
        name = path.stem if path.suffix in (".py", ".pyw", ".pyz", ".zip", ".pyc") else path.name
    return re.sub(r"[^\w.-]+", "_", name).strip("._")[:60] or "program"


def _started_unix_s(pid: int) -> float | None:
    """When a process started, or None where `/proc` does not say (proc(5), field 22 of stat, and btime)."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        return int(boot.split()[1]) + int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def check_interpreter() -> None:
    """Raises for an interpreter whose program would not find the hook, instead of running it unserved.

    Raises:
        ConfigError: With what to start it by instead.
    """
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise ConfigError(
            "`python` must not ignore its environment or its site module (-I, -E, -S): the hook reaches the program "
            "through them; leave the option out, or run without stoker by `--off`"
        )
    root = str(Path(__file__).resolve().parents[2])
    if sys.path[0] == root and not sys.flags.safe_path and root not in sys.path[1:] and not _is_installed(root):
        raise ConfigError(
            f"`stoker` must be importable by the program, but was found only in the current directory {root}; "
            f"install it, or set PYTHONPATH={root}"
        )


def _is_installed(root: str) -> bool:
    return os.path.basename(root) in ("site-packages", "dist-packages")
