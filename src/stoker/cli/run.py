"""`stoker run [options] script.py [args…]`: reads stoker's own options and hands the rest, untouched, to python."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from stoker.cli.errors import refuse
from stoker.core.config import KEYS, Key
from stoker.core.config_sources import resolve
from stoker.core.errors import ConfigError, StokerError
from stoker.run.launch import launch

USAGE = "stoker run [options] script.py [args…]\n       stoker run [options] -m module [args…]"
_HELP_COMMAND = "stoker run --help"

_HELP = {
    "workers": ("auto|N", "data workers of each elastic loader; auto finds the number, 0: in the program"),
    "max-workers": ("N", "most data workers of a loader (default: 64)"),
    "cpu-budget": ("CORES", "CPU cores that all data workers together may keep busy"),
    "worker-memory": ("SIZE", "private memory of a data worker, which is replaced near it, such as 4GiB"),
    "slot-memory": ("SIZE", "memory of the slots of a loader, such as 2GiB"),
    "random": ("keep|sample", "keep the program's random streams where they matter, or seed each sample by itself"),
    "tier": ("auto|pinned", "how loaders are served: found for each, or as torch would"),
    "cut": ("exact|always|off", "move what depends on the batch alone to data workers: where it pays, all, or nothing"),
    "cache": ("[=DIR]", "read remote stores (s3://, gs://, ...) through the data cache, kept in DIR"),
    "cache-size": ("SIZE", "most bytes that the data cache takes on disk, such as 50GB"),
    "cache-rules": ("RULES", "how stale paths may be, such as 's3://data/* immutable; https://* 5min'"),
    "cache-verify": ("WHEN", "compare cached bytes with their checksums `always`, or on `first-touch` by a process"),
    "cache-join": ("RING", "cluster that is asked before the store, such as static:a:7070,b:7070"),
    "cache-secret-file": ("FILE", "secret of that cluster (default: the file `secret` in the cache's directory)"),
    "cache-tls-ca": ("FILE", "certificates that vouch for the workers of that cluster, which are reached by TLS"),
    "cache-timeout": ("TIME", "silence after which a worker of that cluster counts as lost (default 0.9s)"),
    "off": ("", "run the program without stoker"),
    "quiet": ("", "print nothing but errors"),
    "run-dir": ("DIR", "folder for the records of the run (default: a new one under stoker-runs)"),
    "on-bad-sample": ("raise|skip|replace", "what to do with a sample that killed its data worker twice"),
    "bad-sample-cap": ("N", "most samples that may be skipped or replaced"),
    "stall-timeout": ("TIME", "silence after which a data worker counts as stuck, such as 60s"),
    "replay": ("SPEC", "make one sample again, alone, in the program, as an error message named it"),
}
"""What `--help` prints beside each option; an empty value name marks a switch. Rules are those of `KEYS`."""


def main(argv: list[str]) -> int:
    """Becomes the program; returns only when there is nothing to run: 0 after `--help`, 2 for a wrong command line."""
    try:
        chosen, program = split(argv)
        if "help" in chosen:
            print(help_text())
            return 0
        launch(resolve(chosen).settings, program)
    except StokerError as error:
        return refuse(error)


def split(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Divides a command line into stoker's options, as texts by key name, and the program with its own arguments.

    Stoker's options end at the script, at ``-m module``, ``-c command`` or ``-``, or after ``--``.

    Raises:
        ConfigError: An option is unknown, lacks its value or has one too many, or there is no program.
    """
    chosen: dict[str, str] = {}
    words = list(argv)
    while words:
        word = words[0]
        if word == "--":
            words.pop(0)
            break
        if word in ("-h", "--help"):
            return {"help": ""}, []
        if not word.startswith("-") or word == "-" or word[:2] in ("-m", "-c"):
            break
        words.pop(0)
        key, value = _option(word)
        chosen[key.name] = _value(key, value, words)
    if not words or words in (["-m"], ["-c"]):
        found = f"`{words[0]}` alone" if words else "nothing"
        raise ConfigError(f"`script.py` or `-m module` must follow the options, got {found}; see `{_HELP_COMMAND}`")
    return chosen, words


def _option(word: str) -> tuple[Key, str | None]:
    name, equals, value = word.partition("=")
    for key in KEYS:
        if name == f"--{key.name}":
            return key, value if equals else None
    options = [f"--{key.name}" for key in KEYS]
    near = get_close_matches(name, options, n=1, cutoff=0.7)
    if near:
        remedy = f"did you mean `{near[0]}`?"
    elif name.startswith("--"):
        remedy = "options of the program go after the script; `stoker run --help` lists stoker's own"
    else:
        remedy = f"options of python go before: `python {word} -m stoker run …`"
    raise ConfigError(f"`{name}` is not an option of `stoker run`; {remedy}")


def _value(key: Key, given: str | None, rest: list[str]) -> str:
    if not _HELP[key.name][0]:
        if given is not None:
            raise ConfigError(f"`--{key.name}` takes no value, got {given!r}")
        return "true"
    if given is not None:
        return given
    if _HELP[key.name][0].startswith("["):
        return "on"  # a value only after "=", so that the script can follow
    if not rest:
        raise ConfigError(f"`--{key.name}` must be followed by {key.rule}, got nothing")
    return rest.pop(0)


def help_text() -> str:
    """Returns what `stoker run --help` prints."""
    lines = [f"usage: {USAGE}", "", "Runs a PyTorch program, unchanged, with its data loaders served by stoker.", ""]
    for key in KEYS:
        form, text = _HELP[key.name]
        option = f"--{key.name} or --{key.name}{form[1:-1]}" if form.startswith("[") else f"--{key.name} {form}".strip()
        lines.append(f"  {option:<34} {text}")
    lines += [
        "",
        "Everything after the script or module belongs to the program. Each option but --run-dir can also be set as",
        "STOKER_<NAME> in the environment, all of them in [tool.stoker] of pyproject.toml: see `stoker config show`.",
    ]
    return "\n".join(lines)
