"""`stoker run [options] script.py [args…]`: reads stoker's own options and hands the rest, untouched, to python."""

from __future__ import annotations

from stoker.cli.command_line import Option, check_program, split
from stoker.cli.errors import refuse
from stoker.core.config import KEYS
from stoker.core.config_sources import resolve
from stoker.core.errors import StokerError
from stoker.run.launch import launch

USAGE = "stoker run [options] script.py [args…]\n       stoker run [options] -m module [args…]"
_COMMAND = "stoker run"

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
    "cache-required": ("", "do not run where the data cache cannot be used, rather than without it"),
    "cache-size": ("SIZE", "most bytes that the data cache takes on disk, such as 50GB"),
    "cache-rules": ("RULES", "how stale paths may be, such as 's3://data/* immutable; https://* 5min'"),
    "cache-verify": ("WHEN", "compare cached bytes with their checksums `always`, or on `first-touch` by a process"),
    "cache-eviction": ("POLICY", "which pages go first: `epoch` (training), `sieve`, `s3fifo` or `lru` (serving)"),
    "cache-join": ("RING", "cluster that is asked before the store, such as static:a:7070,b:7070"),
    "cache-secret-file": ("FILE", "secret of that cluster (default: the file `secret` in the cache's directory)"),
    "cache-tls-ca": ("FILE", "certificates that vouch for the workers of that cluster, which are reached by TLS"),
    "cache-timeout": ("TIME", "silence after which a worker of that cluster counts as lost (default 0.9s)"),
    "versus-plain": ("N", "let torch's own workers take turns over the first N batches, and say who is faster"),
    "off": ("", "run the program without stoker"),
    "quiet": ("", "print nothing but errors"),
    "run-dir": ("DIR", "folder for the records of the run (default: a new one under stoker-runs)"),
    "on-bad-sample": ("raise|skip|replace", "what to do with a sample that killed its data worker twice"),
    "bad-sample-cap": ("N", "most samples that may be skipped or replaced"),
    "stall-timeout": ("TIME", "silence after which a data worker counts as stuck, such as 60s"),
    "replay": ("SPEC", "make one sample again, alone, in the program, as an error message named it"),
}
"""What `--help` prints beside each option; an empty value name marks a switch. Rules are those of `KEYS`."""

OPTIONS = {
    key.name: Option(
        rule=key.rule if _HELP[key.name][0] else "",
        default="on" if _HELP[key.name][0].startswith("[") else None,
    )
    for key in KEYS
}
"""By the name of the setting that they give."""


def main(argv: list[str]) -> int:
    """Becomes the program; returns only when there is nothing to run: 0 after `--help`, 2 for a wrong command line."""
    try:
        chosen, program = split(argv, _COMMAND, OPTIONS)
        if "help" in chosen:
            print(help_text())
            return 0
        check_program(program, _COMMAND)
        launch(resolve(chosen).settings, program)
    except StokerError as error:
        return refuse(error)


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
